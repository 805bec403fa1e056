"""On a CUDA device: kernels that are launched from a thread of autograd."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import ctxcarry  # noqa: E402

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
TIMEOUT = 120


class Launch(torch.autograd.Function):
    """Pass a tensor through, and call a function in backward."""

    @staticmethod
    def forward(ctx, x, fn):
        ctx.fn = fn
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.fn()
        return grad, None


def in_function(launch):
    """Start a pass with a custom function whose backward launches."""
    Launch.apply(torch.ones(2, device="cuda", requires_grad=True), launch).sum().backward()


def in_hook(launch):
    """Start a pass with a hook that launches."""
    x = torch.ones(2, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: launch())
    (x + 1).sum().backward()


def in_recompute(launch):
    """Start a pass with a checkpoint that launches."""
    from torch.utils.checkpoint import checkpoint

    def block(x):
        launch()
        return (x * x).sum()

    checkpoint(
        block, torch.ones(2, device="cuda", requires_grad=True), use_reentrant=False
    ).backward()


@pytest.mark.parametrize("start", [in_function, in_hook, in_recompute])
def test_device_side_descriptors(start):
    """A kernel that needs Triton's allocator dies there in plain torch, and runs with ours."""
    import kernels

    x = torch.randn(256, 256, device="cuda")
    triton.set_allocator(kernels.scratch)
    copied = []

    def launch():
        copied.append(kernels.copy_with_device_side_descriptors(x))

    with pytest.raises(RuntimeError, match="no allocator was set"):
        start(launch)
    copied.clear()
    ctxcarry.install("autograd")
    try:
        start(launch)
    finally:
        ctxcarry.uninstall("autograd")
    assert copied
    assert all(torch.equal(x, y) for y in copied)


# In a process of its own: the engine's thread must not have called CUDA before.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, ctxcarry, kernels
how, place = sys.argv[2:]
x = torch.randn(256, 256, device="cuda")
kernels.copy_with_host_side_descriptors(x)  # compiled here: loading would bind a context
if how == "install":
    ctxcarry.install("autograd")

def launch():
    assert torch.equal(x, kernels.copy_with_host_side_descriptors(x))
    assert torch.cuda.current_device() == 0

class Launch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if place == "function":
            launch()
        return grad

if how == "carry_context":
    ctxcarry.carry_context(Launch)
a = torch.ones(2, device="cuda", requires_grad=True)
y = Launch.apply(a)
if place == "hook":
    hook = ctxcarry.autograd.hook if how == "hook" else lambda fn: fn
    y.register_hook(hook(lambda grad: launch()))
y.backward(torch.ones_like(y))
print("copied")
"""


def run(how, place):
    """Return how the program ended."""
    command = [sys.executable, "-c", PROGRAM, str(HERE), how, place]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)


@pytest.mark.parametrize("place", ["function", "hook"])
def test_plain_host_side_descriptors(place):
    """The fault: no CUDA context is current on the engine's thread."""
    ended = run("plain", place)
    assert ended.returncode != 0
    assert "invalid device context" in ended.stderr


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("install", "function"),
        ("install", "hook"),
        ("hook", "hook"),
        ("carry_context", "function"),
    ],
)
def test_host_side_descriptors(how, place):
    """The context is bound there, the device is not changed, and the process ends."""
    ended = run(how, place)
    assert (ended.returncode, ended.stdout) == (0, "copied\n"), ended.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_each_device_has_its_own_thread():
    """A pass over two devices: each node has the context of the pass and its own device."""
    import contextvars

    variable = contextvars.ContextVar("variable", default="LOST")
    variable.set("SET")
    seen = []
    ctxcarry.install("autograd")
    try:
        x = torch.ones(2, device="cuda:1", requires_grad=True)
        y = Launch.apply(x, lambda: seen.append((variable.get(), torch.cuda.current_device())))
        y = Launch.apply(
            y.to("cuda:0"), lambda: seen.append((variable.get(), torch.cuda.current_device()))
        )
        y.sum().backward()
    finally:
        ctxcarry.uninstall("autograd")
    assert seen == [("SET", 0), ("SET", 1)]
