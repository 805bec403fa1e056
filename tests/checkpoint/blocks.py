"""Blocks of the kinds that models have, and steps of training with and without a checkpoint."""

from __future__ import annotations

from functools import partial

import torch
from ctxcarry_checkpoint import Action, Policy, checkpoint, policies
from torch import nn
from torch.nn import functional

__all__ = (
    "POLICIES",
    "Dropouts",
    "InPlace",
    "Llama",
    "Mixture",
    "Normed",
    "Scaled",
    "Squared",
    "assert_same",
    "compare",
    "train",
)


class EverySecond(Policy):
    """Keep the result of every second operator."""

    def decide(self, call):
        """Decide by its place."""
        return Action.SAVE if call.index % 2 else Action.RECOMPUTE


class Some(Policy):
    """Keep the results of some operators, where there are any."""

    def decide(self, call):
        """Decide by name."""
        name = str(call.op)
        kept = any(part in name for part in ("mm", "attention", "exp", "tanh", "rand", "square"))
        return Action.SAVE if kept else None


POLICIES = {
    "nothing kept": policies.full(),
    "some kept": Some(),
    "every second kept": EverySecond(),
    "everything kept": policies.none(),
    "offloaded": policies.others(Action.OFFLOAD),
}


def train(module, batches, policy=None, *, before=None, call=None, **options):
    """
    Take a step for each batch.

    Args:
        module: The block, changed by the steps.
        batches: Arguments of each step.
        policy: The policy of a checkpoint, or None for no checkpoint.
        before: Called with the module and the number of the step.
        call: What to checkpoint, if not the module.
        options: Of the checkpoint.

    Returns:
        Of each step the output, all gradients, the buffers, and the state of the generator.
    """
    found = []
    call = call or module
    torch.manual_seed(5)
    for step, batch in enumerate(batches):
        if before is not None:
            before(module, step)
        args = [t.clone().requires_grad_(t.is_floating_point()) for t in batch]
        if policy is None:
            output = call(*args)
        else:
            output = checkpoint(call, *args, policy=policy, **options)
        (output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum().backward()
        parameters = list(module.parameters())
        found.append(
            {
                "output": output.detach().clone(),
                "gradients": [None if p.grad is None else p.grad.clone() for p in parameters],
                "of inputs": [t.grad for t in args],
                "generator": torch.get_rng_state(),
            }
        )
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
                    parameter.grad = None
    return found


def assert_same(expected, found):
    """Compare what two trainings returned, bit by bit."""
    assert len(expected) == len(found)
    for step, (one, other) in enumerate(zip(expected, found)):
        for name in one:
            left, right = one[name], other[name]
            if isinstance(left, torch.Tensor):
                left, right = [left], [right]
            assert len(left) == len(right)
            for number, (a, b) in enumerate(zip(left, right)):
                same = a is b is None or (a is not None and b is not None and torch.equal(a, b))
                assert same, f"step {step}: {name} {number} differ"


def compare(run, policy, *, times=3, **options):
    """
    Do something with and without a checkpoint, and compare the tensors bit by bit.

    Args:
        run: Takes what calls a block, ``call(fn, *args, **kwargs)``; returns tensors.
        policy: The policy of the checkpoint.
        times: How often each is done: the first is recorded, others follow.
        options: Of the checkpoint.
    """

    def taken(call):
        torch.manual_seed(7)
        return [[each.detach().clone() for each in run(call)] for _ in range(times)]

    expected = taken(lambda fn, *args, **kwargs: fn(*args, **kwargs))
    found = taken(partial(checkpoint, policy=policy, **options))
    assert expected[0], "nothing was compared"
    for one, other in zip(expected, found):
        assert len(one) == len(other)
        assert [torch.equal(a, b) for a, b in zip(one, other)] == [True] * len(one)


class Norm(nn.Module):
    """RMSNorm as models write it."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        """Normalize."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * (
            self.weight
        )


class Llama(nn.Module):
    """Attention with rope and fewer keys than queries, and a SwiGLU."""

    def __init__(self, size=16, heads=4, kv_heads=2, hidden=24):
        super().__init__()
        self.head = size // heads
        self.norm1, self.norm2 = Norm(size), Norm(size)
        self.q = nn.Linear(size, size, bias=False)
        self.k = nn.Linear(size, kv_heads * self.head, bias=False)
        self.v = nn.Linear(size, kv_heads * self.head, bias=False)
        self.o = nn.Linear(size, size, bias=False)
        self.w1, self.w3 = (nn.Linear(size, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, size, bias=False)

    def turned(self, x):
        """Apply rope."""
        rows, half = x.shape[-2], self.head // 2
        angle = torch.outer(torch.arange(rows), 100.0 ** -(torch.arange(half) / half))
        turn = torch.polar(torch.ones_like(angle), angle)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], half, 2))
        return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)

    def forward(self, x):
        """Run."""
        batch, rows, size = x.shape
        h = self.norm1(x)
        q, k, v = (
            each(h).view(batch, rows, -1, self.head).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        attended = functional.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + self.o(attended.transpose(1, 2).reshape(batch, rows, size))
        h = self.norm2(x)
        return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))


class Mixture(nn.Module):
    """
    Experts, each with the rows that the router gives to it: as many as it happens to be.

    Args:
        leave_out: Whether an expert without rows is not called.
    """

    def __init__(self, size=8, experts=3, *, leave_out=False):
        super().__init__()
        self.router = nn.Linear(size, experts)
        self.experts = nn.ModuleList(nn.Linear(size, size) for _ in range(experts))
        self.leave_out = leave_out

    def forward(self, x):
        """Run."""
        share, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if self.leave_out and not len(rows):
                continue
            made.index_add_(0, rows, expert(x[rows]).relu() * share[rows, place, None])
        return made


class Dropouts(nn.Module):
    """Several draws of random numbers, also in attention."""

    def __init__(self, size=8, p=0.3):
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        """Run."""
        h = self.dropout(self.first(x).tanh())
        p = self.dropout.p if self.training else 0.0
        h = functional.scaled_dot_product_attention(h, h, h, dropout_p=p)
        h = h + torch.rand_like(h) * h
        return self.dropout(self.second(h).sigmoid()) * torch.randn(x.shape)


class InPlace(nn.Module):
    """Work in place: on results, on views of them, into memory that was made before."""

    def __init__(self, size=8):
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x):
        """Run."""
        h = self.first(x).relu_()
        h = (h * 2).add_(1).sin()
        h[:, ::2].mul_(2)
        h.masked_fill_(x > 1, 0.5)
        room = torch.empty(2, *h.shape)
        room[0].copy_(h)
        room[1].copy_(self.second(h).exp())
        room.mul_(0.5)
        whole = room.sum(0)
        left, right = whole[:, :4], whole[:, 4:]
        return torch.cat([left.add_(right.sigmoid()), right.cos()], -1).mul_(3)


class Normed(nn.Module):
    """BatchNorm, whose buffers change."""

    def __init__(self, size=8):
        super().__init__()
        self.first, self.norm = nn.Linear(size, size), nn.BatchNorm1d(size)
        self.second = nn.Linear(size, size)

    def forward(self, x):
        """Run."""
        return self.second(self.norm(self.first(x)).relu()).tanh()


class Power(torch.autograd.Function):
    """Keeps an argument, a result, one that is neither, and a number."""

    @staticmethod
    def forward(ctx, x, factor):
        half = x.exp() * 0.5
        made = half * factor
        ctx.save_for_backward(x, half, made)
        ctx.factor = factor
        return made

    @staticmethod
    def backward(ctx, grad):
        x, half, made = ctx.saved_tensors
        again = ctx.saved_tensors
        assert all(torch.equal(a, b) for a, b in zip((x, half, made), again))
        return grad * (half * ctx.factor + made - made + x - x), None


class Scaled(nn.Module):
    """A function with a backward of its own."""

    def __init__(self, size=8):
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x):
        """Run."""
        return self.second(Power.apply(self.first(x).tanh(), 3.0).sin()).cos()


@torch.library.custom_op("ctxcarry_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    """Square."""
    return x * x


square.register_fake(torch.empty_like)
square.register_autograd(
    lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("ctxcarry_tests::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    """Double in place, and return nothing."""
    x.mul_(2)


class Squared(nn.Module):
    """Operators of a library."""

    def __init__(self, size=8):
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x):
        """Run."""
        h = square(self.first(x).sin())
        with torch.no_grad():
            scale = h.exp()
            double_(scale)
        return self.second(square(h) * scale).tanh()
