"""Case 03 (pytorch#115917): the default device is not that of whoever handed the work over."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def device():
    """Return the device on which a factory makes tensors, and the default one."""
    return torch.empty(1).device.type, str(torch.get_default_device())


@pytest.fixture
def global_device():
    """Set the default device by torch's setter, and reset it in the end."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_fault_of_the_setter(plain, global_device):
    """In a plain pool a device that was set globally is not used."""
    assert (("meta", "meta"), ("cpu", "cpu")) == (device(), plain(device))


def test_fault_of_the_block(plain):
    """In a plain pool the device of a block is not used."""
    with torch.device("meta"):
        assert ("meta", "cpu") == (device()[0], plain(device)[0])


def test_cure_of_the_setter(way):
    """The work uses the device that is set where it is handed over, and not before or after."""
    assert ("cpu", "cpu") == way(device)
    torch.set_default_device("meta")
    try:
        assert ("meta", "meta") == way(device)
    finally:
        torch.set_default_device(None)
    assert ("cpu", "cpu") == way(device)


def test_cure_of_the_block(way):
    """The work uses the device of the innermost block around the hand-over."""
    with torch.device("meta"):
        assert device() == way(device)
        with torch.device("cpu"):
            assert device() == way(device)
    assert ("cpu", "cpu") == way(device)
