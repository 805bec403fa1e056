"""On two CUDA devices: a pass over both, whose nodes run on a thread of autograd for each."""

import contextvars
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import ctxcarry  # noqa: E402

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason=f"needs two CUDA devices in one process, and there are {torch.cuda.device_count()}",
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
DEVICES = ("cuda:0", "cuda:1")
variable = contextvars.ContextVar("variable", default="LOST")


@pytest.fixture
def installed():
    """Install the boundary, and take it off again."""
    ctxcarry.install("autograd")
    yield
    ctxcarry.uninstall("autograd")


class Tap(torch.autograd.Function):
    """Pass a tensor through, and call a function in backward."""

    @staticmethod
    def forward(ctx, x, fn):
        ctx.fn = fn
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.fn()
        return grad, None


class Notes(list):
    """Where something ran, and what it saw there."""

    def note(self):
        """Note the current device, the thread, and the variable."""
        self.append((torch.cuda.current_device(), threading.get_ident(), variable.get()))

    def check(self, value):
        """Check that it ran once for each device, on a thread of its own, and saw the value."""
        assert [(0, value), (1, value)] == sorted((device, seen) for device, _, seen in self)
        threads = {thread for _, thread, _ in self}
        assert len(threads) == 2
        assert threading.get_ident() not in threads


def recomputes(value):
    """Return what recomputes see of what was set around the forward only."""
    recomputing, notes = [], Notes()

    def block(x):
        if recomputing:
            notes.note()
        return x.sin().exp()

    token = variable.set(value)
    leaves = [torch.ones(4, device=device, requires_grad=True) for device in DEVICES]
    ends = [checkpoint(block, x, use_reentrant=False).sum() for x in leaves]
    variable.reset(token)
    recomputing.append(True)
    torch.autograd.backward(ends)
    return notes


def test_plain_recompute():
    """The fault: on neither device the recompute has what its forward had."""
    recomputes("SET").check("LOST")


@pytest.mark.usefixtures("installed")
def test_recompute():
    """Carried, it has it on both, and on a thread for each."""
    recomputes("SET").check("SET")


@pytest.mark.usefixtures("installed")
def test_recompute_with_a_mesh_of_spmd_types():
    """So it is with the mesh of spmd_types."""
    spmd = pytest.importorskip("spmd_types")
    from spmd_types import _mesh_axis
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    seen = []

    def block(x):
        seen.append((torch.cuda.current_device(), sorted(spmd.current_mesh_names() or ())))
        return x.sin().exp()

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with spmd.set_current_mesh(mesh):
            leaves = [torch.ones(4, device=device, requires_grad=True) for device in DEVICES]
            ends = [checkpoint(block, x, use_reentrant=False).sum() for x in leaves]
        seen.clear()
        torch.autograd.backward(ends)
    finally:
        torch.distributed.destroy_process_group()
        _mesh_axis._reset()
    assert [(0, ["dp", "tp"]), (1, ["dp", "tp"])] == sorted(seen)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("place", ["function", "hook"])
def test_functions_and_hooks(place):
    """They have the context of the call of backward, on both."""
    notes = Notes()
    ends = []
    for device in DEVICES:
        x = torch.ones(4, device=device, requires_grad=True) * 2
        if place == "function":
            x = Tap.apply(x, notes.note)
        else:
            x.register_hook(lambda grad: notes.note())
        ends.append(x.sum())
    variable.set("SET")
    torch.autograd.backward(ends)
    notes.check("SET")


@pytest.mark.usefixtures("installed")
def test_passes_that_meet_on_both_devices():
    """Passes that two threads start at a time keep their contexts apart on both devices."""
    together = threading.Barrier(2, timeout=60)
    passes = 50

    def start(value):
        variable.set(value)
        found = Notes()
        for _ in range(passes):
            leaves = [torch.ones(4, device=device, requires_grad=True) for device in DEVICES]
            ends = [Tap.apply(x * 2, found.note).sum() for x in leaves]
            together.wait()
            torch.autograd.backward(ends)
        return found

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(start, ["ONE", "OTHER"])
    for notes, value in (one, "ONE"), (other, "OTHER"):
        assert {(0, value), (1, value)} == {(device, seen) for device, _, seen in notes}
        assert 2 * passes == len(notes)
    assert {thread for _, thread, _ in one} == {thread for _, thread, _ in other}


@pytest.mark.usefixtures("installed")
def test_kernels_that_need_an_allocator():
    """A recompute launches a kernel that needs Triton's allocator on each device."""
    triton = pytest.importorskip("triton")
    import kernels

    copied = []

    def block(x):
        with torch.no_grad(), torch.cuda.device(x.device):
            copied.append((x.detach(), kernels.copy_with_device_side_descriptors(x.detach())))
        return x.sin().exp()

    triton.set_allocator(kernels.scratch)
    leaves = [torch.randn(256, 256, device=device, requires_grad=True) for device in DEVICES]
    torch.autograd.backward([checkpoint(block, x, use_reentrant=False).sum() for x in leaves])
    assert len(copied) == 4
    assert all(torch.equal(x, y) for x, y in copied)


def test_gradients():
    """They are those of plain torch, and those with autograd's threads switched off."""

    def gradients():
        torch.manual_seed(1)
        block = [torch.nn.Linear(8, 8, device=device) for device in DEVICES]
        x = torch.randn(3, 8, device=DEVICES[0], requires_grad=True)
        y = checkpoint(block[0], x, use_reentrant=False)
        y = checkpoint(block[1], y.to(DEVICES[1]), use_reentrant=False)
        (y.square().sum().to(DEVICES[0]) + x.sum()).backward()
        return [x.grad, *(weight.grad for layer in block for weight in layer.parameters())]

    plain = gradients()
    ctxcarry.install("autograd")
    try:
        carried = gradients()
    finally:
        ctxcarry.uninstall("autograd")
    with torch.autograd.set_multithreading_enabled(False):
        alone = gradients()
    torch.testing.assert_close(carried, plain)
    torch.testing.assert_close(alone, plain)


def test_benchmark():
    """The benchmark of two GPUs finds nothing wrong, however small it is."""
    pytest.importorskip("triton")
    sizes = "--blocks 2 --layers 2 --width 64 --tokens 64 --nodes 20 --rounds 1 --warm 1 --passes 1"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "benchmarks" / "two_gpu_autograd.py"),
            *sizes.split(),
            *("--devices", *DEVICES),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "not judged" in ended.stdout  # the ratio without a goal
