"""Autocast: regions, dtypes and the cache of weights."""

from __future__ import annotations

import pytest
import torch
from torch_states_subjects import AMBIENT, ON_CPU, ONES, entered

import ctxcarry


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_dtype_reaches_a_real_layer(dtype, carrying):
    """A layer that a worker calls computes in the submitter's autocast dtype."""
    lin = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=dtype):
        result = carrying.submit(lin, ONES)
    assert dtype == result.result().dtype
    assert torch.float32 == carrying.submit(lin, ONES).result().dtype


def test_autocast_that_is_off_in_the_submitter_is_off_in_the_worker(carrying):
    """A disabled region within an enabled one is what a task runs under."""
    lin = torch.nn.Linear(4, 4)
    with torch.autocast(*ON_CPU), torch.autocast("cpu", enabled=False):
        result = carrying.submit(lin, ONES).result()
    assert torch.float32 == result.dtype


def test_autocast_of_the_worker_is_off_for_a_submitter_without(worker):
    """A task whose submitter has no autocast runs without, in a thread that has it on."""
    lin = torch.nn.Linear(4, 4)
    bound = ctxcarry.bind(lin)

    def work():
        with torch.autocast(*ON_CPU):
            return bound(ONES).dtype, lin(ONES).dtype

    assert (torch.float32, torch.bfloat16) == worker.submit(work).result()


@pytest.mark.parametrize("outer", ["bfloat16", "off in autocast", "off without weight cache"])
def test_region_opened_by_the_task_is_as_inline(outer, carrying, nesting):
    """A task's own autocast region takes dtype, cache flag and depth from the carried ones."""

    def work():
        layer = torch.nn.Linear(4, 4)
        before = nesting()
        with torch.autocast("cpu"):
            result = layer(ONES)
            inside = nesting()
            caches = torch.is_autocast_cache_enabled()
        return result.dtype, before, inside, caches, nesting()

    with entered(AMBIENT[outer]):
        inline, carried = work(), carrying.submit(work).result()
    assert inline == carried


def test_region_opened_by_the_task_within_a_disabled_one_runs(carrying):
    """A layer used inline under float16 can be used by a task's own region: one dtype, not two."""
    lin = torch.nn.Linear(4, 4)

    def work():
        with torch.autocast("cpu"):
            return lin(ONES).dtype

    with torch.autocast("cpu", torch.float16):
        lin(ONES)
        with torch.autocast("cpu", enabled=False):
            inline, carried = work(), carrying.submit(work).result()
    assert inline == carried


def change_weight(lin):
    """Change the weight of a layer as an optimizer does."""
    with torch.no_grad():
        lin.weight.add_(1)


@pytest.mark.parametrize("caches", [True, False])
def test_weight_cache_is_used_as_inline(caches, carrying):
    """Within one carried region a changed weight is cast again only if the cache is off."""

    def work():
        lin = torch.nn.Linear(4, 4)
        first = lin(ONES)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pass  # leaving a nested region must not drop the cache
        change_weight(lin)
        return torch.equal(first, lin(ONES))

    with torch.autocast(*ON_CPU, cache_enabled=caches):
        inline, carried = work(), carrying.submit(work).result()
    assert caches == inline
    assert inline == carried


def test_weight_cache_is_dropped_when_a_task_leaves_the_outermost_region(worker):
    """A weight changed between two tasks of one snapshot is cast again by the second."""
    lin = torch.nn.Linear(4, 4)
    with torch.autocast(*ON_CPU):
        bound = ctxcarry.bind(lin)
        expected = [lin(ONES)]
    first = worker.submit(bound, ONES).result()
    change_weight(lin)
    second = worker.submit(bound, ONES).result()
    with torch.autocast(*ON_CPU):
        expected.append(lin(ONES))
    assert torch.equal(expected[0], first)
    assert torch.equal(expected[1], second)


def test_weight_cache_is_dropped_after_a_task_that_raised(worker):
    """The cache is dropped as well when the task that filled it raised."""
    lin = torch.nn.Linear(4, 4)

    def fail():
        lin(ONES)
        raise KeyError

    with torch.autocast(*ON_CPU):
        bound, failing = ctxcarry.bind(lin), ctxcarry.bind(fail)
    with pytest.raises(KeyError):
        worker.submit(failing).result()
    change_weight(lin)
    second = worker.submit(bound, ONES).result()
    with torch.autocast(*ON_CPU):
        expected = lin(ONES)
    assert torch.equal(expected, second)


def test_weight_cache_is_kept_within_a_region_of_the_worker(worker):
    """A snapshot activated inside the thread's own region leaves that region's depth alone."""
    with torch.autocast(*ON_CPU):
        snapshot = ctxcarry.capture()

    def work():
        lin = torch.nn.Linear(4, 4)
        with torch.autocast(*ON_CPU):
            first = lin(ONES)
            snapshot.run(int)
            change_weight(lin)
            return torch.equal(first, lin(ONES))

    assert worker.submit(work).result()
