"""Programs and policies made up at random: the gradients stay, and nothing runs needlessly."""

import re
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import torch
from ctxcarry_checkpoint import Action, Policy, checkpoint
from ctxcarry_checkpoint._checkpoint import run_block
from ctxcarry_checkpoint._liveness import groups, live
from ctxcarry_checkpoint._trace import Site
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

SIZE = 4
NOT_IN_PLACE = re.compile("in.?place|view|written-to")
# Each takes two of the tensors so far, and returns the new ones.
STEPS = {
    "matmul": lambda a, b: [a @ b],
    "add": lambda a, b: [a + b],
    "mul": lambda a, b: [a * b.sigmoid()],
    "tanh": lambda a, b: [a.tanh()],
    "sin": lambda a, b: [a.sin()],
    "softmax": lambda a, b: [a.softmax(-1)],
    "view": lambda a, b: [a.reshape(2, -1).view(SIZE, SIZE)],
    "transpose": lambda a, b: [a.t()],
    "dropout": lambda a, b: [functional.dropout(a, 0.5)],
    "draw": lambda a, b: [a * torch.rand(SIZE, SIZE)],
    "draw alike": lambda a, b: [torch.rand_like(a) + b],
    "split and cat": lambda a, b: [torch.cat([a.split(2, 0)[1], b.split(2, 0)[0]])],
    "parts": lambda a, b: [part.repeat(2, 1) for part in a.chunk(2)],
    "sort": lambda a, b: [a.sort(-1).values],
    "clone": lambda a, b: [a.clone()],
    "add in place": lambda a, b: [(a * 2).add_(b)],
    "relu in place": lambda a, b: [(a + b).relu_()],
    "in place on a view": lambda a, b: [in_place_on_a_view(a, b)],
    "copied into room": lambda a, b: [copied_into_room(a, b)],
    "fill": lambda a, b: [(a - b).masked_fill_(b > 0, 0.5)],
    "later in place": lambda a, b: list(later_in_place(a, b)),
    "without gradients": lambda a, b: [a * b.detach().abs().mean()],
    "a number": lambda a, b: [a * (1 + int((b > 0).sum()) % 3)],
    "half in place": lambda a, b: in_place(a, lambda t: t.mul_(0.5)),
    "added in place": lambda a, b: in_place(a, lambda t: t.add_(b.detach())),
    "multiplied in place": lambda a, b: in_place(a, lambda t: t.mul_(b)),
    "a row in place": lambda a, b: in_place(a, lambda t: t[0].copy_(b[1])),
    "noise in place": lambda a, b: in_place(a, lambda t: t.detach().normal_()),
    "transposed in place": lambda a, b: in_place(a, lambda t: t.t_()),
    "a slice": lambda a, b: [a[1:3].repeat(2, 1)],
    "a view of all": lambda a, b: [a.view(-1).view(SIZE, SIZE) if a.is_contiguous() else a],
    "a column": lambda a, b: [a[:, 1:2] * b.cos()],
    "where": lambda a, b: [torch.where(a > 0, a, b)],
    "of no gradient": lambda a, b: [(a.detach() * b.detach()).exp().sin()],
    "for nothing": lambda a, b: [a + 1, b.exp().cos()][:1],
}


def in_place(a, change):
    """Change a result that others may have read, or may be a view of."""
    if not (a.is_leaf or (a._base is not None and a._base.is_leaf)):
        change(a)
    return []


def in_place_on_a_view(a, b):
    """Change a part of a result."""
    h = a * 1.5
    h[1:].mul_(b[1:])
    return h


def copied_into_room(a, b):
    """Copy two results into memory that was made before."""
    room = torch.empty(2, SIZE, SIZE)
    room[0].copy_(a)
    room[1].copy_(b)
    return room.sum(0)


def later_in_place(a, b):
    """Read a result before it is changed, and after."""
    h = a + 1
    before = h.sum(0, keepdim=True) * b
    h.add_(b)
    return before, h


@st.composite
def programs(draw):
    """Make up a program: its steps, and of which tensors it returns the sum."""
    steps = []
    for _ in range(draw(st.integers(2, 12))):
        name = draw(st.sampled_from(sorted(STEPS)))
        # Mostly of what was made last.
        steps.append((name, draw(st.integers(0, 5)), draw(st.integers(0, 5))))
    return steps, draw(st.integers(1, 3))


class Chosen(Policy):
    """Keep what was chosen, by the place of the operator."""

    def __init__(self, actions):
        self.actions = actions

    def decide(self, call):
        """Decide by its place."""
        return self.actions[call.index % len(self.actions)]


ACTIONS = st.lists(st.sampled_from(list(Action)), min_size=1, max_size=12)


def run_program(program, weight, x):
    """Run a program."""
    steps, returned = program
    made = [x, weight]
    for name, one, other in steps:
        made += STEPS[name](made[-1 - one % len(made)], made[-1 - other % len(made)])
    return sum(each.mul(number + 1.0) for number, each in enumerate(made[-returned:]))


def gradients(call, program, way, times=3):
    """Return the gradients of some steps, and where the generator ends."""
    torch.manual_seed(3)
    weight = torch.randn(SIZE, SIZE, requires_grad=True)
    found = []
    for _ in range(times):
        x = torch.randn(SIZE, SIZE, requires_grad=True)
        hooks = saved_tensors_hooks(torch.clone, torch.clone)
        with hooks if way == "hooks" else nullcontext():
            y = call(partial(run_program, program), weight, x)
        found.append(y.detach().clone())
        if not y.requires_grad:
            continue
        if way == "changed":
            y = y * 1 if "checkpoint" not in repr(call) else y
            y.mul_(2)
        if way in {"retained", "parts"}:
            of = {"retained": [weight, x], "parts": [x]}[way]
            found += torch.autograd.grad(y.sum(), of, allow_unused=True, retain_graph=True)
        found += torch.autograd.grad(y.sum(), [weight, x], allow_unused=True)
        found.append(torch.get_rng_state())
    return found


WAYS = st.sampled_from(["plain", "retained", "parts", "hooks", "changed"])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(programs(), ACTIONS, st.booleans(), WAYS)
def test_gradients(program, actions, early_stop, way):
    """Whatever is kept, the gradients are the same bit by bit."""
    try:
        # Hooks that copy would hide it from autograd.
        gradients(lambda fn, *args: fn(*args), program, "plain", times=1)
        expected = gradients(lambda fn, *args: fn(*args), program, way)
    except RuntimeError as error:
        # What is changed in place was needed, or may not be.
        assert NOT_IN_PLACE.search(str(error))  # noqa: PT017
        reject()
    policy = Chosen(actions)
    found = gradients(partial(checkpoint, policy=policy, early_stop=early_stop), program, way)
    for a, b in zip(expected, found):
        assert a is b is None or (torch.eq(a, b) | (a.isnan() & b.isnan())).all()


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(programs(), ACTIONS)
def test_what_runs_again(program, actions):
    """Keeping something never makes more run again, and what runs has what it reads."""
    site = Site()
    x, weight = (torch.randn(SIZE, SIZE, requires_grad=True) for _ in range(2))
    try:
        run_block(run_program, (program, weight, x), {}, Chosen(actions), site)
    except RuntimeError as error:
        assert NOT_IN_PLACE.search(str(error))  # noqa: PT017
        reject()
    ops = site.traces[0].ops
    most = live(ops, ()).reruns
    kept = {op.index for op in ops if actions[op.index % len(actions)]}
    found = live(ops, kept)
    assert found.reruns <= most
    of_group = groups(ops)
    for index in found.reruns - found.saved:
        for parent in ops[index].parents:
            owner = ops[parent].owner
            first = parent if owner is None else owner
            assert first in found.saved | found.reruns or ops[first].scalar
            if first in found.saved and first != index:
                assert parent == of_group[first][-1], "it would read a later state"
    drawn = [index for index in found.reruns if ops[index].random]
    assert all(i in found.reruns for i in range(max(drawn, default=0)) if ops[i].random)
