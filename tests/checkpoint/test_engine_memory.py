"""What is kept, for how long, and what a recompute leaves out."""

import gc
import sys
import weakref
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import Action, checkpoint, policies
from ctxcarry_checkpoint._checkpoint import run_block, same_policy
from ctxcarry_checkpoint._frame import Frame
from ctxcarry_checkpoint._holder import Holder
from ctxcarry_checkpoint._trace import Site
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, InPlace, Llama, Mixture

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))


class Count(TorchDispatchMode):
    """Count the operators by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def in_backward(block, policy, *args, steps=3):
    """Return the operators of the backward, in each step but the first, which must agree."""
    found = []
    for _ in range(steps):
        y = checkpoint(block, *args, policy=policy).sum()
        with Count() as count:
            y.backward()
        found.append(count.names)
    assert found[1] == found[2]
    return found[1]


@pytest.fixture
def weights():
    """Return two weights."""
    torch.manual_seed(2)
    return [torch.randn(8, 8, requires_grad=True) for _ in range(2)]


def test_what_leads_to_what_is_kept_is_left_out(weights):
    """What only makes a result that is kept is not called again."""
    one, two = weights

    def block(x):
        return ((x + 1).mul(3).mean(-1, keepdim=True) * one).sum(0) @ two

    x = torch.randn(4, 8)[:, None]
    full = in_backward(block, policies.full(), x)
    assert [full.count(name) for name in ("add", "mean", "mul")] == [1, 1, 3]
    kept = in_backward(block, policies.save(torch.ops.aten.mean), x)
    assert [kept.count(name) for name in ("add", "mean", "mul")] == [0, 0, 2]


def test_what_nobody_needs_is_left_out(weights):
    """What follows the last tensor that is needed, and what leads nowhere, is not called."""
    one, _ = weights

    def block(x):
        x.cos().exp().sum()
        return (x @ one).tanh().add(3).neg()

    names = in_backward(block, policies.full(), torch.randn(4, 8))
    assert names.count("tanh") == 1
    assert not {"cos", "exp", "add"} & set(names)
    # Saved by the caller as well: nothing at all is left to do.
    assert "tanh" not in in_backward(block, policies.save("aten.tanh"), torch.randn(4, 8))


def test_an_in_place_operator_that_is_kept(weights):
    """It is kept together with what made its memory, and neither is called again."""
    one, two = weights

    def block(x):
        h = (x @ one).relu_()
        return (h @ two).sin() * 2

    x = torch.randn(4, 8)
    names = in_backward(block, policies.full(), x)
    assert (names.count("mm"), names.count("relu_")) == (5, 1)
    names = in_backward(block, policies.save("aten.mm"), x)
    assert (names.count("mm"), names.count("relu_")) == (3, 0)


def test_a_draw_that_is_kept_advances_the_generator():
    """A draw before one that is made again is made again too, though its result is kept."""

    def block(x):
        return (x * torch.rand_like(x)).sin() * (x * torch.rand_like(x)).exp()

    class FirstDraw(policies.Policy):
        def decide(self, call):
            kept = call.op is torch.ops.aten.rand_like.default and call.nth == 0
            return Action.SAVE if kept else None

    x = torch.randn(4, requires_grad=True)
    assert in_backward(block, FirstDraw(), x).count("rand_like") == 2
    assert in_backward(block, policies.save("aten.rand_like"), x).count("rand_like") == 0


def test_the_recompute_ends_early(weights):
    """Nothing is called past the last tensor that is needed, unless that is asked for."""
    one, two = weights
    ended = []

    def block(x):
        h = (x @ one).tanh() @ two
        ended.append(1)
        return h + 1

    for early_stop, ends in ((True, 1), (False, 2)):
        ended.clear()
        checkpoint(block, torch.randn(4, 8), early_stop=early_stop).sum().backward()
        assert len(ended) == ends


def test_everything_kept_calls_nothing(weights):
    """There is no recompute where everything is kept."""
    one, two = weights
    calls = []

    def block(x):
        calls.append(1)
        return ((x @ one).tanh() @ two).sin()

    for step in range(1, 4):
        checkpoint(block, torch.randn(4, 8), policy=policies.none()).sum().backward()
        assert len(calls) == step


@contextmanager
def no_collection():
    """Have no cycles collected: what is freed has none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def living(monkeypatch):
    """Give a function that returns all frames and holders that are still there."""
    found = []
    for kind in (Frame, Holder):

        def made(self, *args, _original=kind.__init__, **kwargs):
            found.append(weakref.ref(self))
            _original(self, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", made)
    yield lambda: [each() for each in found if each() is not None]


KINDS = {"llama": Llama, "experts": Mixture, "in place": InPlace}


@each_policy
@pytest.mark.parametrize("way", ["backward", "dropped", "retained", "hooks"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_nothing_stays(kind, way, policy, monkeypatch):
    """After the backward, and after the output is dropped, nothing of a forward is left."""
    torch.manual_seed(2)
    model = KINDS[kind]()
    shape = (2, 5, 16) if kind == "llama" else (4, 8)
    with no_collection(), living(monkeypatch) as left:
        made = []
        handle = model.register_forward_hook(lambda _m, _a, out: made.append(weakref.ref(out)))
        for _ in range(3):
            if way == "hooks":
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                    y = checkpoint(model, torch.randn(shape), policy=policy).sum()
            else:
                y = checkpoint(model, torch.randn(shape), policy=policy).sum()
            if way == "retained":
                y.backward(retain_graph=True)
            if way != "dropped":
                y.backward()
            del y
            assert left() == []
            assert [each() for each in made if each() is not None] == []
        handle.remove()


@each_policy
def test_the_backward_frees_what_it_has_used(policy, monkeypatch):
    """After a backward what was kept is gone, though the output is still there."""
    model = Llama()
    with no_collection(), living(monkeypatch) as left:
        for _ in range(3):
            y = checkpoint(model, torch.randn(2, 5, 16), policy=policy)
            y.sum().backward()
            assert [each for each in left() if isinstance(each, Holder)] == []
            del y


def test_an_error_leaves_nothing(monkeypatch):
    """Neither does a block that raises, in the forward or in the backward."""
    fails = [False]

    def block(x):
        h = x.sin().exp()
        if fails[0]:
            raise ValueError("in the block")
        return h.cos()

    with no_collection(), living(monkeypatch) as left:
        for in_forward in (True, False):
            fails[0] = in_forward
            try:
                y = checkpoint(block, torch.ones(3, requires_grad=True))
                fails[0] = True
                y.sum().backward()
            except ValueError:
                pass
            else:
                pytest.fail("it was to raise")
            y = None
            assert left() == []


def kept_bytes(block, policy, *args):
    """Return the bytes that a forward keeps, of results the block made, in a step that follows."""
    site = Site()
    frames = []

    class Seen(Frame):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            frames.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[run_block.__module__], "Frame", Seen)
        for _ in range(2):
            y = run_block(block, args, {}, same_policy(policy), site)
    storages = {}
    frame = frames[-1]
    tensors = [t for kept in frame._mode.kept.values() for t in kept.held()]
    tensors += [h.value for ref in frame._holders if (h := ref()) is not None and h._made]
    for tensor in tensors:
        if tensor is not None:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    assert y is not None
    return sum(storages.values())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (policies.full(), 0),
        (policies.save("aten.mm"), 2),
        (policies.save("aten.tanh"), 1),
        # Of the first product there is no need where its tanh is kept.
        (policies.save("aten.mm") | policies.save("aten.tanh"), 2),
        (policies.matmuls(every=2), 1),
        (policies.save("aten.t") | policies.save("aten.mm"), 2),
    ],
)
def test_the_bytes_are_those_of_the_policy(weights, policy, expected):
    """What is kept is what the policy keeps, once, and nothing beside it."""
    one, two = weights

    def block(x):
        h = (x @ one).tanh()
        return (h @ two.t()).sin().sigmoid().sum()

    assert kept_bytes(block, policy, torch.randn(16, 8)) == expected * 16 * 8 * 4
