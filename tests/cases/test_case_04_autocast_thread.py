"""Case 04 (pytorch#50170, #60540): pool threads compute in float32 under autocast."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def call():
    """Give a call of a layer, which computes in the autocast dtype if there is one."""
    return torch.nn.Linear(4, 4), torch.ones(2, 4)


def test_fault(plain, call):
    """In a plain pool the layer computes in float32 although autocast is on."""
    lin, x = call
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.bfloat16, torch.float32) == (lin(x).dtype, plain(lin, x).dtype)


def test_cure(way, call):
    """The layer computes in the dtype of whoever handed it over, and else in float32."""
    lin, x = call
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inline, carried = lin(x), way(lin, x)
    assert torch.bfloat16 == carried.dtype
    assert torch.equal(inline, carried)
    assert torch.float32 == way(lin, x).dtype
