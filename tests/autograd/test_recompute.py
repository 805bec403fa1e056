"""The recompute of a checkpoint: in the context of its forward, wherever it runs."""

import contextvars
import threading
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import ctxcarry

only_matmul = partial(
    create_selective_checkpoint_contexts,
    lambda ctx, op, *args, **kwargs: (
        CheckpointPolicy.MUST_SAVE
        if op == torch.ops.aten.mm.default
        else CheckpointPolicy.PREFER_RECOMPUTE
    ),
)


@pytest.fixture(params=["install", "install, reentrant", "context_fn", "context_fn, selective"])
def carried_checkpoint(request):
    """Return ``checkpoint`` made to carry: by `install`, or by a ``context_fn``."""
    if request.param.startswith("install"):
        ctxcarry.install("autograd")
        yield partial(checkpoint, use_reentrant="reentrant" in request.param)
        ctxcarry.uninstall("autograd")
    else:
        inner = only_matmul if "selective" in request.param else None
        context_fn = ctxcarry.autograd.context_fn(inner)
        yield partial(checkpoint, use_reentrant=False, context_fn=context_fn)


plain_checkpoint = partial(checkpoint, use_reentrant=False)


def backward_here(loss):
    """Start the pass on this thread."""
    loss.backward()


def backward_elsewhere(loss):
    """Start the pass on another Python thread."""
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


@pytest.fixture(params=["CPU", "device"])
def leaf(request, device):
    """Return what makes a leaf: on the CPU, or where the engine has a thread of its own."""
    return device.leaf if request.param == "device" else partial(torch.ones, 2, requires_grad=True)


def seen_in_recompute(checkpoint, leaf, contexts, start):
    """Return what the second run of a checkpointed function sees, once the scope has closed."""
    seen = []

    def block(x):
        seen.append(contexts.seen()[:2])
        return (x * x).sum()

    loss = checkpoint(block, leaf())
    contexts.set("LATER")
    start(loss)
    assert seen[0] == ("SET", "SET")
    assert len(seen) == 2
    return seen[1]


@pytest.mark.parametrize("start", [backward_here, backward_elsewhere])
def test_plain_recompute_loses_the_contexts(leaf, contexts, start):
    """The fault: the second run does not see what the first one saw."""
    assert seen_in_recompute(plain_checkpoint, leaf, contexts, start) != ("SET", "SET")


@pytest.mark.parametrize("start", [backward_here, backward_elsewhere])
def test_recompute(carried_checkpoint, leaf, contexts, start):
    """Carried, it does: the scope may have closed, and any thread may start the pass."""
    assert seen_in_recompute(carried_checkpoint, leaf, contexts, start) == ("SET", "SET")
    assert contexts.seen()[:2] == ("LATER", "LATER")


def test_a_retained_graph(carried_checkpoint, device, contexts):
    """Each pass over one graph recomputes in the context of the one forward."""
    seen = []

    def block(x):
        seen.append(contexts.seen()[:2])
        return (x * x).sum()

    x = device.leaf()
    loss = carried_checkpoint(block, x)
    contexts.set("LATER")
    loss.backward(retain_graph=True)
    loss.backward()
    assert seen == [("SET", "SET")] * 3
    assert device.to_host(x.grad).tolist() == [4, 4]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_one_within_another(carried_checkpoint, device, contexts):
    """A checkpoint within a checkpoint has the context of its own forward."""
    seen = []

    def inner(x):
        seen.append(contexts.seen()[0])
        return x * x

    def outer(x):
        contexts.set("INNER")
        y = carried_checkpoint(inner, x * x)
        contexts.set("SET")
        seen.append(contexts.seen()[0])
        return y.sum()

    loss = carried_checkpoint(outer, device.leaf())
    contexts.set("LATER")
    loss.backward()
    assert seen[:2] == ["INNER", "SET"]
    # Once for the recompute of the outer one, unless that stops early, and once for its own.
    assert set(seen[2:]) <= {"INNER", "SET"}
    assert seen.count("INNER") >= 2


def test_microbatches(carried_checkpoint, device, contexts):
    """Several forwards before the first backward: each recompute has its own."""
    seen = []

    def block(x):
        seen.append(contexts.seen()[:2])
        return (x * x).sum()

    losses = []
    for name in "abc":
        contexts.set(name)
        losses.append(carried_checkpoint(block, device.leaf()))
    contexts.set("LATER")
    for loss in losses:
        loss.backward()
    assert seen == [(name, name) for name in "abcabc"]


def test_function_modes(carried_checkpoint):
    """The function modes of the forward, which ``backward()`` takes off (pytorch#148919)."""

    class Count(TorchFunctionMode):
        """Count the calls of ``sin``."""

        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += getattr(func, "__name__", "") == "sin"
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    with Count() as count:
        loss = carried_checkpoint(lambda t: t.sin().cos().sum(), x)
        loss.backward()
    assert count.calls == 2
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.usefixtures("installed")
def test_default_device(reentrant):
    """The default device of the forward (pytorch#124788, pytorch#193922)."""
    seen = []

    def block(x):
        seen.append(torch.empty(1).device.type)
        return x.sin().sum()

    x = torch.ones(2, requires_grad=True)
    with torch.device("meta"):
        loss = checkpoint(block, x, use_reentrant=reentrant)
    loss.backward()
    assert seen == ["meta", "meta"]


def test_what_the_checkpoint_restores_itself(carried_checkpoint):
    """Autocast of the forward, and gradients although the pass is under ``no_grad``."""
    seen = []

    def block(x):
        seen.append((torch.is_autocast_enabled("cpu"), x.requires_grad))
        return (x * x).sum()

    x = torch.ones(2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = carried_checkpoint(block, x)
    with torch.no_grad():
        loss.backward()
    assert [autocast for autocast, _ in seen] == [True, True]
    assert x.grad.tolist() == [2, 2]


@pytest.mark.usefixtures("installed")
def test_a_context_fn_of_the_user_is_within(contexts):
    """What somebody's own recompute context sets is there, over what the forward had."""
    seen = []

    @contextmanager
    def recomputing():
        contexts.set("RECOMPUTE")
        try:
            yield
        finally:
            contexts.set("SET")

    def block(x):
        seen.append(contexts.seen()[:2])
        return (x * x).sum()

    for wrap in (lambda fn: fn, ctxcarry.autograd.context_fn):
        seen.clear()
        loss = checkpoint(
            block,
            torch.ones(2, requires_grad=True),
            use_reentrant=False,
            context_fn=wrap(lambda: (nullcontext(), recomputing())),
        )
        loss.backward()
        assert seen == [("SET", "SET"), ("RECOMPUTE", "RECOMPUTE")]


def test_the_inner_context_suppresses_and_fails(contexts):
    """The context of the forward comes off whatever the inner one does."""
    undo = []

    class Inner:
        """A context manager that fails on entry, or takes an exception."""

        fails = True

        def __enter__(self):
            if self.fails:
                msg = "on entry"
                raise ValueError(msg)

        def __exit__(self, exc_type, exc, traceback):
            undo.append(exc_type)
            return exc_type is KeyError

    _, recompute = ctxcarry.autograd.context_fn(lambda: (nullcontext(), Inner()))()
    contexts.set("LATER")
    with pytest.raises(ValueError, match="on entry"), recompute:
        pass
    assert contexts.seen()[:2] == ("LATER", "LATER")
    Inner.fails = False
    with recompute:
        assert contexts.seen()[:2] == ("SET", "SET")
        raise KeyError
    assert undo == [KeyError]
    assert contexts.seen()[:2] == ("LATER", "LATER")


def test_entered_on_two_threads_at_once(contexts):
    """Two threads may recompute one frame: each has the context, and is clean after it."""
    _, recompute = ctxcarry.autograd.context_fn()()
    both, seen = threading.Barrier(2, timeout=60), []

    def run():
        with recompute:
            both.wait()
            seen.append(contexts.seen()[:2])
            both.wait()
        seen.append(contexts.seen()[:2])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [("LOST", "LOST")] * 2 + [("SET", "SET")] * 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("reentrant", [False, True])
def test_an_exception_in_recompute(reentrant, contexts):
    """It comes out as it is, and this thread is as it was."""
    runs = []

    def block(x):
        runs.append(1)
        if len(runs) == 2:
            msg = "in recompute"
            raise ValueError(msg)
        return (x * x).sum()

    loss = checkpoint(block, torch.ones(2, requires_grad=True), use_reentrant=reentrant)
    contexts.set("LATER")
    with pytest.raises(ValueError, match="in recompute"):
        loss.backward()
    assert contexts.seen()[:2] == ("LATER", "LATER")


@pytest.mark.usefixtures("installed")
def test_a_setting_of_the_process(contexts):
    """A process-wide value is there in recompute, and not touched on the way to a thread."""
    setting, sets = ["a"], []

    def put(value):
        sets.append(value)
        setting[0] = value

    carrier = ctxcarry.ValueCarrier("setting", lambda: setting[0], put, process_wide=True)
    ctxcarry.register(carrier)
    try:
        seen = []

        def block(x):
            seen.append(setting[0])
            return (x * x).sum()

        loss = checkpoint(block, torch.ones(2, requires_grad=True), use_reentrant=False)
        with ctxcarry.executor(1) as pool:
            setting[0] = "b"
            pool.submit(contexts.seen).result()
            assert sets == []
        loss.backward()
    finally:
        ctxcarry.unregister("setting")
    assert seen == ["a", "a"]
    assert setting == ["b"]


@pytest.mark.usefixtures("installed")
def test_nothing_is_kept_alive(is_collected):
    """After the pass nothing refers to what was set around the forward."""
    kept = contextvars.ContextVar("kept", default=None)

    class Big:
        """Something that somebody would notice."""

    def run():
        big = Big()
        kept.set(big)
        x = torch.ones(2, requires_grad=True)
        loss = checkpoint(lambda t: (t * t).sum(), x, use_reentrant=False)
        kept.set(None)
        loss.backward()
        return weakref.ref(big), loss

    reference, loss = run()
    assert loss.requires_grad
    assert is_collected(reference)


@pytest.mark.usefixtures("installed")
def test_without_gradients_nothing_is_recomputed(contexts):
    """Under ``no_grad`` a checkpoint just calls."""
    with torch.no_grad():
        seen = []
        checkpoint(lambda x: seen.append(contexts.seen()[:2]), torch.ones(2), use_reentrant=False)
    assert seen == [("SET", "SET")]


def test_wrong_context_fn():
    """What is no function is refused where it is given."""
    with pytest.raises(TypeError, match="takes a function that returns two context managers"):
        ctxcarry.autograd.context_fn(noop_context_fn())
