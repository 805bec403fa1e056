"""Case 06 (pytorch#186537, unsloth#7019): pool threads lose the configuration of the compiler."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", minversion="2.12")  # which made them ContextVars

import torch._dynamo.config as dynamo
import torch._inductor.config as inductor


def seen():
    """Return what this thread would compile with."""
    return dynamo.recompile_limit, inductor.max_autotune


DEFAULTS = seen()


def test_fault(plain):
    """In a plain pool both are as if they had never been set."""
    dynamo.recompile_limit = 4096
    with inductor.patch(max_autotune=True):
        assert ((4096, True), DEFAULTS) == (seen(), plain(seen))


def test_cure(way):
    """Both are as where the work is handed over, and as nobody set them in the end."""
    assert DEFAULTS == way(seen)
    with dynamo.patch(recompile_limit=4096), inductor.patch(max_autotune=True):
        assert (4096, True) == way(seen)
    assert DEFAULTS == way(seen)


def test_cure_of_an_assignment(way):
    """An assignment is carried as well, and one by the work stays in the work."""

    def work():
        before = dynamo.recompile_limit
        dynamo.recompile_limit = 7
        return before, dynamo.recompile_limit

    dynamo.recompile_limit = 4096
    assert (4096, 7) == way(work)
    assert (4096, 7) == way(work)
    assert 4096 == dynamo.recompile_limit
