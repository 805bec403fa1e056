"""The engine: passes at once and within one another, and what stays its own."""

import contextvars
import subprocess
import sys
import threading
import weakref

import pytest
import torch

import ctxcarry
from ctxcarry.boundaries import _autograd_tls, _backward, autograd_engine

CARRIED = ("SET", "SET", True)
kept = contextvars.ContextVar("kept", default=None)


def deep(tap, depth, look):
    """Start a pass whose one node starts another, `depth` times; call `look` at each."""

    def within():
        look()
        if depth:
            with torch.enable_grad():
                deep(tap, depth - 1, look)

    tap(torch.ones(1, requires_grad=True), within).sum().backward()


def test_plain_passes_within_one_another_lose_the_contexts(tap, contexts):
    """The fault: past 60 of them the engine goes on on another thread."""
    seen = []
    deep(tap, 70, lambda: seen.append(contexts.seen()))
    assert seen[60] == ("SET", "SET", False)
    assert seen[61:] == [("LOST", "LOST", True)] * 10


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("threads", [True, False])
def test_passes_within_one_another(threads, tap, contexts):
    """Each hop brings the context along, with autograd's threads on or off."""
    seen = []
    with torch.autograd.set_multithreading_enabled(threads):
        deep(tap, 140, lambda: seen.append(contexts.seen()))
    assert {look[:2] for look in seen} == {("SET", "SET")}
    assert sum(elsewhere for _, _, elsewhere in seen) == 80


@pytest.mark.usefixtures("installed")
def test_a_pass_started_on_a_thread_of_the_engine(device, tap, contexts):
    """It has the context of the outer pass, and what its starter has set since."""
    seen = []

    def start_another():
        contexts.set("INNER")
        with torch.enable_grad():
            tap(device.leaf(), lambda: seen.append(contexts.seen())).sum().backward()
            deep(tap, 61, lambda: seen.append(contexts.seen()))

    x = tap(device.leaf(), lambda: seen.append(contexts.seen()))
    tap(x, start_another).sum().backward()
    assert seen[:-1] == [("INNER", "INNER", True)] * 63
    # Variables stay in the Context of the pass; the field has been set back.
    assert seen[-1] == ("INNER", "SET", True)


@pytest.mark.usefixtures("installed")
def test_passes_at_once(device, tap, contexts):
    """Nodes of several passes take turns on one thread, and none sees another's context."""
    wrong, passes, nodes = [], 20, 50
    start = threading.Barrier(4, timeout=60)

    def run(name):
        contexts.set(name)

        def look():
            if contexts.seen() != (name, name, True):
                wrong.append((name, contexts.seen()))

        start.wait()
        for _ in range(passes):
            y = device.leaf()
            for _ in range(nodes):
                y = tap(y, look)
            y.sum().backward()

    threads = [threading.Thread(target=run, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_node_of_another_pass_within_a_pass(contexts):
    """
    A thread that waits for an inner pass may run nodes of other passes meanwhile.

    They have their own context, to the last carrier, and the first one's is back after them.
    """

    def started_on_another_thread(set_up):
        made = []
        thread = threading.Thread(target=lambda: (set_up(), made.append(_backward.Backward(0))))
        thread.start()
        thread.join()
        return made[0]

    first = started_on_another_thread(lambda: contexts.set("FIRST"))
    second = started_on_another_thread(lambda: None)
    seen = []

    def look():
        seen.append(contexts.seen())

    def node():
        look()
        second.call(look, ())
        second.call(lambda: first.call(look, ()), ())
        look()

    thread = threading.Thread(target=first.call, args=(node, ()))
    thread.start()
    thread.join()
    in_first, in_second = ("FIRST", "FIRST", True), ("LOST", "LOST", True)
    assert seen == [in_first, in_second, in_first, in_first]


@pytest.mark.usefixtures("installed")
def test_what_is_the_engines_own(device):
    """Grad mode, autocast, dispatch modes and saved-tensor hooks are as the engine sets them."""
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def state():
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            len(_get_current_dispatch_mode_stack()),
            torch._C._autograd._top_saved_tensors_default_hooks(False) is None,
            torch._C._is_multithreading_enabled(),
        )

    def seen(create_graph):
        states = []
        x = device.leaf()
        y = x + 1
        y.register_hook(lambda grad: states.append(state()))
        with (
            torch.no_grad(),
            Mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        ):
            torch.autograd.grad(y, x, torch.ones_like(y), create_graph=create_graph)
        return states

    carried = [seen(create_graph=False), seen(create_graph=True)]
    ctxcarry.uninstall("autograd")
    assert carried == [seen(create_graph=False), seen(create_graph=True)]


@pytest.mark.usefixtures("installed")
def test_nothing_is_kept_alive(device, tap, is_collected):
    """After a pass, failed or not, nothing refers to what was set around it."""

    class Big:
        """Something that somebody would notice."""

    def run(fail):
        big = Big()
        kept.set(big)

        def look():
            assert kept.get() is not None
            if fail:
                msg = "in backward"
                raise ValueError(msg)

        loss = tap(tap(device.leaf(), look), lambda: None).sum()
        error = None
        try:
            loss.backward()
        except ValueError as caught:
            error = caught
        kept.set(None)
        return weakref.ref(big), loss, error

    for fail in (False, True):
        reference, loss, error = run(fail)
        assert loss is not None
        assert (error is not None) is fail
        if error is not None:
            error.__traceback__ = None  # whose first frame is the one of `run`
        assert is_collected(reference)
    assert _backward.current == {}
    assert autograd_engine.under_way == {}


@pytest.mark.usefixtures("installed")
def test_the_stash_is_taken_away(device, tap):
    """An object left there would deadlock a thread at its end."""
    found = []
    thread = threading.Thread(
        target=lambda: (
            tap(device.leaf(), lambda: None).sum().backward(),
            found.append(_autograd_tls.stashed()),
        )
    )
    thread.start()
    thread.join()
    assert found == [None]


@pytest.mark.usefixtures("installed")
def test_threads_switched_off_cost_nothing(tap, monkeypatch):
    """Where every node runs on the calling thread there is nothing to capture."""
    captured = []
    capture = _backward.capture_for_engine
    monkeypatch.setattr(
        _backward, "capture_for_engine", lambda *args: captured.append(1) or capture(*args)
    )
    with torch.autograd.set_multithreading_enabled(False):
        deep(tap, 10, lambda: None)
    assert captured == []
    deep(tap, 10, lambda: None)
    assert len(captured) == 11


def test_installing_twice_and_taking_off():
    """The engine is replaced once, and is afterwards the very one that was."""
    before = torch.autograd.Variable._execution_engine
    ctxcarry.install("autograd")
    ctxcarry.install("autograd")
    assert type(torch.autograd.Variable._execution_engine) is autograd_engine.CarryingEngine
    ctxcarry.uninstall("autograd")
    assert torch.autograd.Variable._execution_engine is before


def test_an_engine_that_somebody_kept(tap, contexts):
    """An engine of ours that is still in use after `uninstall` is torch's again."""
    ctxcarry.install("autograd")
    kept = torch.autograd.Variable._execution_engine
    ctxcarry.uninstall("autograd")
    seen = []
    y = tap(torch.ones(1, requires_grad=True), lambda: seen.append(contexts.seen()))
    kept.run_backward((y,), (torch.ones(1),), False, False, (), True, True)
    assert seen == [("SET", "SET", False)]


def test_another_engine_is_left_alone(monkeypatch):
    """Who has replaced the engine themselves keeps theirs."""
    own = type("Own", (type(torch.autograd.Variable._execution_engine),), {})()
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", own)
    ctxcarry.install("autograd")
    ctxcarry.uninstall("autograd")
    assert torch.autograd.Variable._execution_engine is own


def test_a_torch_without_the_stash(monkeypatch):
    """What is missing is named in a warning, and in an error where it is needed."""
    monkeypatch.setattr(_autograd_tls, "_NEEDED", ("_no_such_function",))
    assert "has no torch._C._no_such_function" in _autograd_tls.lacking()
    with pytest.raises(ctxcarry.CtxCarryError, match="no hook can find the context"):
        ctxcarry.autograd.hook(print)
    boundary = autograd_engine._EngineBoundary(
        autograd_engine._patches, lacking=_autograd_tls.lacking
    )
    with pytest.warns(ctxcarry.CtxCarryWarning, match="_no_such_function"):
        boundary.use(decorated=False, everything=True)


PROGRAM = """
import torch, ctxcarry
ctxcarry.install("autograd")

class Deep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            with torch.enable_grad():
                run(ctx.depth - 1)
        return grad, None

def run(depth):
    Deep.apply(torch.ones(1, requires_grad=True), depth).sum().backward()

run(80)
print("done")
"""


@pytest.mark.parametrize("module", ["torch", "torch.utils.checkpoint", "torch.autograd"])
def test_installed_before_torch_is_imported(module):
    """Whichever part of torch the program asks for first, torch is whole when it is patched."""
    program = f"""
import ctxcarry
ctxcarry.install()
import {module}, torch
from torch.utils.checkpoint import checkpoint
x = torch.ones(1, requires_grad=True)
checkpoint(torch.sin, x, use_reentrant=False).backward()
print(type(torch.autograd.Variable._execution_engine).__name__)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "CarryingEngine\n"), ended.stderr


def test_a_process_ends_with_threads_of_the_engine_alive():
    """
    The interpreter ends right after a pass, and no thread aborts it.

    Torch alone does abort now and then: a thread that lets go of the pass late asks for
    the GIL of an interpreter that is ending.
    """
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
