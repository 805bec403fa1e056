"""Case 01 (triton#7685, verl#4676, vllm#33857): the allocator is not there in pool threads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
allocation = pytest.importorskip("triton.runtime._allocation")


def launch():
    """Do what the launcher does when a kernel needs global scratch memory."""
    return type(allocation._allocator.get()(64, 16, None)).__name__


@pytest.fixture
def set_allocator():
    """Give a function that sets the user's allocator, in the Context of the test."""
    return lambda: triton.set_allocator(
        lambda size, align, stream: torch.empty(size, dtype=torch.int8)
    )


def test_fault(plain, set_allocator):
    """In a plain pool the launcher finds no allocator."""
    set_allocator()
    assert "Tensor" == launch()
    with pytest.raises(RuntimeError, match="no allocator was set"):
        plain(launch)


def test_cure(way, set_allocator):
    """The launcher finds the allocator of whoever handed the work over, and only then."""
    with pytest.raises(RuntimeError, match="no allocator was set"):
        way(launch)
    set_allocator()
    assert "Tensor" == way(launch)


def test_cure_is_of_the_hand_over(way, set_allocator):
    """After a hand-over with an allocator, one under suppress has none."""
    import ctxcarry

    set_allocator()
    assert "Tensor" == way(launch)
    with ctxcarry.suppress("triton.allocator"), pytest.raises(RuntimeError):
        way(launch)
