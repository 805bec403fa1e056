"""The context of a forward in its recompute, also where its scope has ended by then."""

import sys
import threading
from contextlib import ExitStack, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint, policies
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import ctxcarry

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, compare

variable = ContextVar("tests.checkpoint.variable", default="LOST")


class Doubled(TorchFunctionMode):
    """Doubles what a sine gives."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.Tensor.sin else found


def on_this_thread(device, y):
    """Start the backward here."""
    y.sum().backward()


def on_another_thread(device, y):
    """Start the backward on another Python thread, which has no context."""
    raised = []

    def run():
        try:
            y.sum().backward()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error


WAYS = {"here": (False, on_this_thread), "thread": (False, on_another_thread)}
WAYS["device thread"] = True, on_this_thread


@pytest.fixture(params=list(WAYS))
def looks(request, device):
    """
    Give a function that says what a look sees in a forward and in its recompute.

    The backward is started after the scope of the forward, here or on another thread.
    """
    is_on_device, start = WAYS[request.param]

    def looks(look, *scopes, within=False):
        seen = []

        def block(x):
            h = x.sin()
            seen.append(look())
            return h.exp()

        found = []
        for _ in range(3):
            seen.clear()
            x = torch.ones(2)
            x = (device.put(x) if is_on_device else x).requires_grad_()
            with ExitStack() as stack:
                for scope in scopes:
                    stack.enter_context(scope())
                y = checkpoint(block, x, early_stop=False)
                if within:
                    start(device, y)
            if not within:
                start(device, y)
            found.append(tuple(seen))
        assert len(set(found)) == 1
        return found[0]

    return looks


def test_a_variable(looks):
    """A ContextVar."""

    class Set:
        def __enter__(self):
            self.token = variable.set("SET")

        def __exit__(self, *_):
            variable.reset(self.token)

    assert looks(variable.get, Set) == ("SET", "SET")
    assert variable.get() == "LOST"


def test_a_mesh_of_spmd_types(looks):
    """The mesh of spmd_types, in which types are asserted."""
    spmd = pytest.importorskip("spmd_types")
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        found = looks(spmd.current_mesh, lambda: spmd.set_current_mesh(mesh))
        assert found[0] is not None
        assert found[0] == found[1]
        assert spmd.current_mesh() is None
    finally:
        dist.destroy_process_group()


def test_the_allocator_of_triton(looks):
    """The allocator that Triton's launcher asks for scratch memory."""
    triton = pytest.importorskip("triton")
    allocation = pytest.importorskip("triton.runtime._allocation")

    def own(size, alignment, stream):
        return torch.empty(size, dtype=torch.int8)

    class Set:
        def __enter__(self):
            self.before = allocation._allocator.get()
            triton.set_allocator(own)

        def __exit__(self, *_):
            triton.set_allocator(self.before)

    found = looks(allocation._allocator.get, Set)
    assert [getattr(each, "allocator", each) for each in found] == [own, own]


def test_function_modes(looks):
    """Those of the forward, in their order."""
    one, two = Doubled(), Doubled()
    found = looks(lambda: tuple(_get_current_function_mode_stack()), lambda: one, lambda: two)
    assert found == ((one, two), (one, two))


def test_no_mode_of_the_backward(looks):
    """And none that only the backward is within."""
    forward, backward = Doubled(), Doubled()

    def look():
        return tuple(_get_current_function_mode_stack())

    with backward:
        assert looks(look, lambda: forward)[1] == (backward, forward)
    assert looks(look) == ((), ())


def test_a_default_device(looks):
    """The device on which a block makes tensors."""
    found = looks(lambda: torch.empty(1).device.type, lambda: torch.device("meta"))
    assert found == ("meta", "meta")


def test_autocast(looks):
    """Whether operators cast, to what, and whether they cache that."""

    def look():
        return (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        )

    def autocast():
        return torch.autocast("cpu", torch.float16, cache_enabled=False)

    assert looks(look, autocast) == ((True, torch.float16, False),) * 2
    assert looks(look)[1][0] is False
    off = partial(torch.autocast, "cpu", enabled=False)
    assert [each[0] for each in looks(look, off)] == [False, False]


def test_process_groups(looks):
    """The group that a name stands for."""
    import torch.distributed as dist

    from ctxcarry import process_groups

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.new_group([0])
        found = looks(lambda: process_groups.current("tp"), lambda: process_groups.use(tp=group))
        assert found == (group, group)
    finally:
        dist.destroy_process_group()


def test_a_carrier_that_comes_later():
    """A context of the user's own, once it is registered."""
    local = threading.local()
    sys.modules["engine_context_local"] = type(sys)("engine_context_local")
    sys.modules["engine_context_local"].local = local
    carrier = ctxcarry.ThreadLocalCarrier("engine_context_local:local", fields=("size",))
    seen = []

    def block(x):
        h = x.sin()
        seen.append(getattr(local, "size", None))
        return h.exp()

    def step():
        seen.clear()
        local.size = 3
        y = checkpoint(block, torch.ones(2, requires_grad=True), early_stop=False)
        local.size = 4
        y.sum().backward()
        return list(seen)

    try:
        assert step() == [3, 4]
        ctxcarry.register(carrier)
        assert step() == [3, 3]
        assert local.size == 4
    finally:
        ctxcarry.unregister(carrier.name)
        del sys.modules["engine_context_local"]


@pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))
def test_a_mode_that_changes_results(policy):
    """The gradients are those of what the mode made of the block."""

    def block(x):
        return (x.sin() * x).exp()

    def run(call):
        x = torch.linspace(-1, 1, 8).requires_grad_()
        with Doubled():
            y = call(block, x)
        return torch.autograd.grad(y.sum(), x)

    compare(run, policy)


@pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))
@pytest.mark.parametrize("around", ["all", "each"])
def test_autocast_with_a_weight_of_several_blocks(policy, around):
    """A weight that was cast for one block is cast for the next one anew (pytorch#193338)."""
    weight = torch.randn(8, 8, requires_grad=True)

    def block(x):
        return (x @ weight).sin() @ weight

    def autocast(name):
        return torch.autocast("cpu", torch.bfloat16) if name == around else nullcontext()

    def run(call):
        h = x = torch.randn(4, 8, requires_grad=True)
        with autocast("all"):
            for _ in range(3):
                with autocast("each"):
                    if "checkpoint" not in repr(call):
                        # Else one cast is for all, whose gradient is summed in another order.
                        torch.clear_autocast_cache()
                    h = call(block, h)
        return torch.autograd.grad(h.float().sum(), [x, weight])

    compare(run, policy)


def test_random_numbers_are_left_alone():
    """``preserve_rng_state=False`` draws on from where the backward is."""
    seen = []

    def block(x):
        noise = torch.rand(2)
        seen.append(noise.clone())
        return (x * noise).sin().exp()

    for preserve in (True, False):
        seen.clear()
        x = torch.ones(2, requires_grad=True)
        y = checkpoint(block, x, policy=policies.full(), preserve_rng_state=preserve)
        y.sum().backward()
        assert len(seen) == 2
        assert torch.equal(*seen) is preserve
