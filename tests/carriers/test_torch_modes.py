"""Default device, function modes and dispatch modes of real torch in other threads."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

import ctxcarry

TIMEOUT = 30


class Noting(TorchFunctionMode):
    """Note the name of each function that passes, in a list shared with other modes."""

    def __init__(self, name, notes):
        super().__init__()
        self.name, self.notes = name, notes

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "add":
            self.notes.append(self.name)
        return func(*args, **(kwargs or {}))


class NotingDispatch(TorchDispatchMode):
    """Note the name of each mode that an addition passes."""

    def __init__(self, name, notes):
        super().__init__()
        self.name, self.notes = name, notes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "add" in str(func):
            self.notes.append(self.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["function", "dispatch"])
def modes(request):
    """Return two modes of a kind, and the list in which they note what passes them."""
    cls = {"function": Noting, "dispatch": NotingDispatch}[request.param]
    notes = []
    return cls("outer", notes), cls("inner", notes), notes


def add():
    """Do what the modes note."""
    return torch.add(torch.ones(1), 1)


def device():
    """Return the device on which a factory makes tensors."""
    return torch.empty(1).device.type


def default_device():
    """Return the default device as torch tells it."""
    return str(torch.get_default_device())


def stacks():
    """Return both stacks of this thread."""
    dispatch = range(torch._C._len_torch_dispatch_stack())
    return (
        _get_current_function_mode_stack(),
        [torch._C._get_dispatch_stack_at(i) for i in dispatch],
    )


@pytest.fixture
def global_device():
    """Set the default device by torch's setter, and reset it in the end."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


# Default device


def test_default_device_is_lost_in_a_plain_pool(worker):
    """Without ctxcarry a factory in the worker uses the CPU, which is the fault."""
    with torch.device("meta"):
        assert ("meta", "cpu") == (device(), worker.submit(device).result())


def test_device_block_is_carried(carrying):
    """A factory in the worker uses the submitter's device, and the CPU in the next task."""
    with torch.device("meta"):
        assert "meta" == carrying.submit(device).result()
    assert "cpu" == carrying.submit(device).result()


def test_set_default_device_is_carried(global_device, carrying):
    """A device that was set globally is that of the worker, by both ways to ask."""
    assert ("meta", "meta") == (device(), default_device())
    found = carrying.submit(lambda: (device(), default_device())).result()
    assert ("meta", "meta") == found


def test_get_default_device_of_a_block_is_as_inline(carrying):
    """What get_default_device says inside a device block is what it says inline."""
    with torch.device("meta"):
        assert default_device() == carrying.submit(default_device).result()


def test_task_may_set_and_reset_the_default_device(global_device, carrying):
    """A task that sets another default device works as inline, and leaves nothing behind."""

    def work():
        torch.set_default_device("cpu")
        first = device(), default_device()
        torch.set_default_device(None)
        return first, device(), default_device()

    assert (("cpu", "cpu"), "cpu", "cpu") == carrying.submit(work).result()
    assert ("meta", "meta") == (device(), default_device())
    assert ("meta", "meta") == carrying.submit(lambda: (device(), default_device())).result()


def test_device_left_set_by_a_task_is_gone_in_the_next(carrying):
    """A default device that a task leaves set does not reach the next task."""
    carrying.submit(torch.set_default_device, "meta").result()
    assert ("cpu", "cpu") == carrying.submit(lambda: (device(), default_device())).result()


def test_default_device_set_while_a_task_runs_stays_with_who_set_it(carrying, barrier):
    """A default device set by the submitter during the task is not taken away by its end."""

    def work():
        barrier.wait()
        barrier.wait()
        return device()

    future = carrying.submit(work)
    barrier.wait()
    torch.set_default_device("meta")
    try:
        barrier.wait()
        assert "cpu" == future.result()
        assert ("meta", "meta") == (device(), default_device())
    finally:
        torch.set_default_device(None)


def test_worker_with_a_default_device_of_its_own_gets_it_back(worker):
    """A worker that has set a device has none in a carried task without one, and it again then."""
    bound = ctxcarry.bind(lambda: (device(), default_device()))

    def work():
        torch.set_default_device("meta")
        try:
            return bound(), (device(), default_device())
        finally:
            torch.set_default_device(None)

    assert (("cpu", "cpu"), ("meta", "meta")) == worker.submit(work).result()


def test_cleared_and_suppressed_default_device(worker):
    """Cleared, the device is none in the worker; suppressed, it is the worker's own."""
    with torch.device("meta"):
        with ctxcarry.policy(clear="torch.default_device"):
            cleared = ctxcarry.bind(device)
        with ctxcarry.suppress("torch.default_device"):
            suppressed = ctxcarry.bind(device)

    def work():
        with torch.device("meta"):
            return cleared(), suppressed()

    assert ("cpu", "meta") == worker.submit(work).result()
    assert "cpu" == worker.submit(suppressed).result()


# Function and dispatch modes


def test_modes_are_lost_in_a_plain_pool(modes, worker):
    """Without ctxcarry nothing in the worker passes the modes."""
    outer, inner, notes = modes
    with outer, inner:
        worker.submit(add).result()
    assert [] == notes


def test_modes_are_carried_in_order(modes, carrying):
    """In the worker a call passes the modes from the innermost outwards, as inline."""
    outer, inner, notes = modes
    with outer, inner:
        add()
        inline = notes.copy()
        notes.clear()
        carrying.submit(add).result()
    assert ["inner", "outer"] == inline
    assert inline == notes
    notes.clear()
    carrying.submit(add).result()
    assert [] == notes


def test_mode_entered_again_keeps_its_order_and_leaves_no_zombie(modes, carrying):
    """One instance entered by the task within the carried ones nests as inline (pytorch#180423)."""
    outer, inner, notes = modes

    def work():
        before = stacks()
        with outer:
            add()
            inside = stacks()
        return before, inside, stacks()

    with outer, inner:
        before = stacks()
        inline = work()
        expected = notes.copy()
        notes.clear()
        assert inline == carrying.submit(work).result()
        assert before == stacks()
    assert ["outer", "inner", "outer"] == expected
    assert expected == notes
    assert ([], []) == stacks()


def test_mode_entered_in_two_threads_at_once(modes, carrying, barrier):
    """Submitter and task enter and leave the carried instance at once, each on its own stack."""
    outer, inner, _ = modes

    def work():
        with inner:
            barrier.wait()
            barrier.wait()
            inside = stacks()
        return inside, stacks()

    with outer:
        carried = stacks()
        future = carrying.submit(work)
        with inner:
            barrier.wait()
            here = stacks()
        assert carried == stacks()
        barrier.wait()
        assert (here, carried) == future.result()
        assert carried == stacks()
    assert ([], []) == stacks()
    assert ([], []) == carrying.submit(stacks).result()


def test_modes_left_by_a_task_are_gone(modes, carrying):
    """Modes that a task enters and does not leave do not reach the next task or the submitter."""
    outer, inner, _ = modes

    def careless():
        inner.__enter__()
        raise KeyError

    with outer:
        before = stacks()
        with pytest.raises(KeyError):
            carrying.submit(careless).result()
        assert before == stacks()
        assert before == carrying.submit(stacks).result()
    assert ([], []) == carrying.submit(stacks).result()


def test_function_modes_lie_over_the_default_device(global_device, carrying):
    """A mode in the worker sees factories before the device is put in, as inline."""
    seen = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.empty:
                seen.append(kwargs)
            return func(*args, **(kwargs or {}))

    with Seeing():
        order = [type(mode).__name__ for mode in _get_current_function_mode_stack()]
        inline, here = device(), stacks()
        found, there = carrying.submit(lambda: (device(), stacks())).result()
    assert ["DeviceContext", "Seeing"] == order
    assert ("meta", "meta") == (inline, found)
    assert here == there
    assert seen[0] == seen[1]


NESTED = {
    "device in a mode": lambda: (Noting("outer", []), torch.device("meta")),
    "device between modes": lambda: (Noting("a", []), torch.device("meta"), Noting("b", [])),
    "device in a device": lambda: (torch.device("cpu"), torch.device("meta")),
    "mode between devices": lambda: (torch.device("cpu"), Noting("a", []), torch.device("meta")),
}


@pytest.mark.parametrize("nesting", NESTED)
def test_nested_devices_and_modes_are_as_inline(nesting, carrying):
    """The worker's stack of devices and modes is the very one of the submitter."""
    with ExitStack() as stack:
        for manager in NESTED[nesting]():
            stack.enter_context(manager)
        here = device(), stacks()
        assert "meta" == here[0]
        assert here == carrying.submit(lambda: (device(), stacks())).result()
        assert here == (device(), stacks())


def test_fake_tensors_are_made_in_the_other_thread(carrying):
    """Under a FakeTensorMode the worker makes fake tensors of that very mode (case 29)."""
    lifting = torch._C._only_lift_cpu_tensors
    with FakeTensorMode() as mode:
        made = carrying.submit(add).result()
        assert lifting() is carrying.submit(lifting).result()
    assert carrying.submit(lifting).result() is False
    assert (FakeTensor, mode) == (type(made), made.fake_mode)
    assert type(carrying.submit(add).result()) is torch.Tensor


@pytest.mark.parametrize("fake_outside", [True, False])
def test_fake_tensors_with_a_mode_of_the_user(fake_outside, carrying):
    """A mode of the user with a FakeTensorMode, in both orders, works in the worker as inline."""
    notes = []
    managers = [FakeTensorMode(), NotingDispatch("mine", notes)]
    if not fake_outside:
        managers.reverse()
    with managers[0], managers[1]:
        here = stacks()
        inline = type(add()), notes.copy()
        notes.clear()
        found = type(carrying.submit(add).result()), notes
        assert inline == found
        assert here == carrying.submit(stacks).result()
        assert here == stacks()
    assert (FakeTensor, ["mine"]) == inline
    assert ([], []) == stacks()


def test_fake_mode_shares_its_shape_environment(carrying):
    """Fake tensors of both threads are of one mode and can be used together."""
    with FakeTensorMode():
        here = torch.ones(2)
        there = carrying.submit(torch.ones, 2).result()
        assert (2,) == tuple((here + there).shape)


def test_no_modes_is_a_state_too(modes, worker):
    """A task handed over outside of any mode passes none, in a thread that has entered some."""
    outer, inner, notes = modes
    bound = ctxcarry.bind(add)

    def work():
        with outer, inner:
            before = stacks()
            bound()
            return before == stacks()

    assert worker.submit(work).result() is True
    assert [] == notes


def test_modes_reach_threads_and_blocks(modes):
    """A thread of ours, and an active block in a plain one, have the modes."""
    outer, inner, notes = modes
    with outer, inner:
        thread = ctxcarry.Thread(target=add)
        thread.start()
        thread.join(TIMEOUT)
        snapshot = ctxcarry.capture()
    assert ["inner", "outer"] == notes

    def block():
        with snapshot.active():
            add()
        add()

    thread = threading.Thread(target=block)
    thread.start()
    thread.join(TIMEOUT)
    assert ["inner", "outer"] * 2 == notes


def test_explain_names_modes_and_device():
    """Explain names the classes of modes, and the device."""
    with torch.device("meta"), Noting("outer", []), FakeTensorMode():
        text = ctxcarry.capture().explain()
    assert "torch.default_device: captured: meta" in text
    assert "Noting" in text
    assert "FakeTensorMode" in text
