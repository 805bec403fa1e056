"""Policies, and one snapshot over another."""

from __future__ import annotations

import pytest
import torch
from torch_states_subjects import AMBIENT, ON_CPU, TORCH, entered

import ctxcarry


def test_suppressed_context_stays_the_workers(worker):
    """A suppressed context is neither captured nor applied."""
    with ctxcarry.suppress("torch.grad_mode"), torch.no_grad(), torch.autocast(*ON_CPU):
        bound = ctxcarry.bind(lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    assert (True, True) == worker.submit(bound).result()


@pytest.mark.parametrize(
    "ambient", ["no_grad", "inference_mode", "bfloat16", "several device types"]
)
def test_cleared_context_is_unset_in_the_worker(ambient, worker, state):
    """A cleared context is as in a new thread, whatever submitter and worker have set."""
    expected = state()
    with ctxcarry.policy(clear=TORCH), entered(AMBIENT[ambient]):
        bound = ctxcarry.bind(state)

    def work():
        with entered(AMBIENT[ambient]):
            return bound()

    actual = worker.submit(work).result()
    keys = {"grad", "inference", "autocast", "autocast nesting", "autocast cache"}
    assert {k: expected[k] for k in keys} == {k: actual[k] for k in keys}


def test_only_the_named_context_is_carried(worker):
    """capture(only=) carries that context and leaves the others as they are in the worker."""
    with torch.no_grad(), torch.autocast(*ON_CPU):
        snapshot = ctxcarry.capture(only="torch.autocast")
    found = worker.submit(
        snapshot.run, lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    )
    assert (True, True) == found.result()


def test_snapshot_over_a_base_takes_from_it_what_it_lacks(worker, state):
    """Each context is the snapshot's own where it has one, and the base's elsewhere."""
    with torch.inference_mode(), torch.autocast(*ON_CPU):
        base = ctxcarry.capture()
    with torch.autocast("cpu", torch.float16):
        over = ctxcarry.capture().over(base)
    actual = worker.submit(over.run, state).result()
    assert (True, False, torch.float16) == (
        actual["inference"],
        actual["grad"],
        actual["autocast dtypes"]["cpu"],
    )


def test_explain_tells_grad_mode_and_autocast():
    """Explain says in words what of torch was captured."""
    with torch.no_grad(), torch.autocast(*ON_CPU):
        text = ctxcarry.capture().explain()
    assert "torch.grad_mode: captured: disabled" in text
    assert "torch.inference_mode: not set" in text
    assert "torch.autocast: captured: cpu bfloat16; nesting 1; weight cache on" in text
