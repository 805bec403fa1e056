"""
Kernels that torch does not see, in a process of its own: it prints OK for each that held.

To be run with ``TRITON_INTERPRET=1`` where there is no GPU, before Triton is imported.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from ctxcarry_checkpoint import Action, checkpoint, policies
from torch.utils._python_dispatch import _disable_current_modes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 64


@triton.jit
def doubled_kernel(x, out, SIZE: tl.constexpr):
    """Write twice `x` to `out`."""
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) * 2)


@triton.jit
def flipped_kernel(x, SIZE: tl.constexpr):
    """Turn `x` around in place."""
    at = tl.arange(0, SIZE)
    value = tl.load(x + at)
    tl.debug_barrier()
    tl.store(x + (SIZE - 1 - at), value)


def launch(x, out):
    """Launch it as on a GPU: Triton's interpreter calls operators of torch, which modes see."""
    with _disable_current_modes() if DEVICE == "cpu" else nullcontext():
        doubled_kernel[(1,)](x, out, SIZE=SIZE)


class Doubled(torch.autograd.Function):
    """A function whose kernel reads its argument by its address, and keeps none of it."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        launch(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class DoubledInPlace(torch.autograd.Function):
    """A function whose kernel writes to its argument."""

    @staticmethod
    def forward(ctx, x):
        launch(x, x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def reads_what_is_dead(x):
    """Nothing that torch sees reads ``x * 3``, and its result is not kept either."""
    return Doubled.apply(x * 3).sin()


def reads_a_result_that_is_kept(x):
    """The kernel reads what the policy keeps."""
    return Doubled.apply(x.exp()).sin()


def writes_to_what_is_kept(x):
    """The kernel writes to what the policy keeps, unseen."""
    h = x.exp().clone()
    with torch.no_grad():
        launch(h, h)
    return (h * x).sin()


def writes_after_it_was_read(x):
    """What was read before the kernel wrote is needed as well."""
    h = x.exp() + 1
    before = h * x
    detached = h.detach()
    launch(detached, detached)
    return (before * 0.5).sin() + (detached * x).cos()


def in_place(x):
    """Torch is told of the write by the function."""
    return DoubledInPlace.apply(x.exp() + 1).sin() * x


def fills_room(x):
    """The kernel writes to memory that was made for it."""
    room = torch.empty_like(x)
    launch(x.detach().cos(), room)
    return (room * x).sin()


def turns_around_what_is_kept(x):
    """The kernel moves what is kept, so that its sum stays."""
    h = x.exp()
    detached = h.detach()
    with _disable_current_modes() if DEVICE == "cpu" else nullcontext():
        flipped_kernel[(1,)](detached, SIZE=SIZE)
    return (detached * x).sin()


class DoubledAsItIs(Doubled):
    """The same, with what the interpreter calls seen by modes."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        doubled_kernel[(1,)](x, out, SIZE=SIZE)
        return out


def with_the_interpreter_seen(x):
    """Operators of Triton's interpreter are operators of the block."""
    return DoubledAsItIs.apply(x.exp()).sin()


BLOCKS = [
    reads_what_is_dead,
    reads_a_result_that_is_kept,
    writes_to_what_is_kept,
    writes_after_it_was_read,
    in_place,
    fills_room,
    turns_around_what_is_kept,
    with_the_interpreter_seen,
]
POLICIES = {
    "nothing": policies.full(),
    "exp": policies.save("aten.exp", "aten.clone", "aten.add"),
    "products": policies.save("aten.mul", "aten.sin", "aten.cos"),
    "rooms": policies.save("aten.empty_like", "aten.cos"),
    "everything": policies.none(),
    "offload": policies.others(Action.OFFLOAD),
}


def gradients(call):
    """Return the gradients of some steps."""
    found = []
    for step in range(4):
        x = torch.linspace(-1, 1 + step, SIZE, device=DEVICE).requires_grad_()
        y = call(x * 1)
        y.sum().backward()
        found.append(x.grad)
    return found


def main():
    """Compare all blocks, with all policies."""
    # Of rules that match nothing in a block.
    warnings.simplefilter("ignore")
    for block in BLOCKS:
        expected = gradients(block)
        for name, policy in POLICIES.items():
            try:
                found = gradients(lambda x, b=block, p=policy: checkpoint(b, x, policy=p))
                same = all(torch.equal(a, b) for a, b in zip(expected, found))
                told = "OK" if same else "WRONG"
            except Exception as error:
                told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            sys.stdout.write(f"{block.__name__}|{name}|{told}\n")


if __name__ == "__main__":
    main()
