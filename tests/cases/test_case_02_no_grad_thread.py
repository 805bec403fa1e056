"""Case 02 (pytorch#20528, #82145): an outer no_grad is ignored in pool threads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def call():
    """Give a call of a network, which records its graph unless it is told not to."""
    net, x = torch.nn.Linear(4, 1), torch.ones(2, 4)
    return net, x


def test_fault(plain, call):
    """In a plain pool the network records although no_grad is on."""
    net, x = call
    with torch.no_grad():
        assert (False, True) == (net(x).requires_grad, plain(net, x).requires_grad)


def test_cure(way, call):
    """The network does not record under the no_grad of whoever handed it over, and else does."""
    net, x = call
    with torch.no_grad():
        carried = way(net, x)
    assert (False, True) == (carried.requires_grad, way(net, x).requires_grad)
    assert torch.equal(net(x), carried)
