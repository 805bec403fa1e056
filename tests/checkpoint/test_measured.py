"""Times that are measured where operators run, by the first step or ahead of it."""

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from ctxcarry_checkpoint import Plan, SelectiveCheckpoint
from ctxcarry_checkpoint._cost import Estimator
from ctxcarry_checkpoint._kinds import Block as Kept
from ctxcarry_checkpoint._measured import Clock, Times
from ctxcarry_checkpoint._ops import Op
from ctxcarry_checkpoint._roofline import Roofline
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from _budgets import CARD, EXAMPLE, followed
from _models import SIZE, Counting, Plain, batches, fresh, same, steps

aten = torch.ops.aten
# Seconds: so long that nothing else which runs on the machine makes another operator take it.
SLOW = 0.02


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads of torch wait for each other for long where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Slow(TorchDispatchMode):
    """Have the operators of one name take their time, and count all."""

    def __init__(self, name):
        super().__init__()
        self.name, self.calls = name, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        if self.name in str(func):
            time.sleep(SLOW)
        return func(*args, **(kwargs or {}))


def taken(plan, name):
    """Return the milliseconds of some operators, by a plan."""
    return [op.ms for group in plan.groups for op in group.kind.ops if name in op.name]


@pytest.mark.parametrize(("slow", "fast"), [("gelu", "layer_norm"), ("layer_norm", "gelu")])
def test_the_first_step_measures(slow, fast):
    """What took long in the first step is kept from then on, whatever an estimate says."""
    expected = steps(fresh(Plain), batches(4))
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.7)
    engine.apply(model, "layers.*")
    with Slow(slow):
        assert same(expected, steps(model, batches(4)))
    plan = followed(engine)
    assert plan.measured
    assert all(ms >= SLOW * 1e3 for ms in taken(plan, slow))
    assert all(0 < ms < SLOW * 1e3 for ms in taken(plan, fast))
    assert all(slow in " ".join(name for name, _ in plan.actions(block)) for block in plan.blocks)


def test_a_given_speed_is_not_measured():
    """Whoever gives the speed of a device has times estimated by it."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.6, roofline=CARD)
    engine.apply(model, "layers.*")
    with Slow("gelu"):
        steps(model, batches(2))
    assert not followed(engine).measured
    assert max(taken(followed(engine), "gelu")) < SLOW * 1e3


def test_a_plan_that_is_measured():
    """With profile=True the model runs for its plan; without, nothing does."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.6)
    with Slow("gelu") as estimated:
        assert not engine.plan(model, EXAMPLE, blocks="layers.*").measured
    assert max(taken(followed(engine), "gelu")) < SLOW * 1e3
    with Slow("gelu") as measured:
        plan = engine.plan(model, EXAMPLE, blocks="layers.*", profile=True)
    assert plan.measured
    assert min(taken(plan, "gelu")) >= SLOW * 1e3
    # Three times each, and the first once more.
    gelus = [calls.count("aten.gelu.default") for calls in (estimated.calls, measured.calls)]
    assert gelus == [3, 3 * len(plan.blocks) + 1]
    assert Plan.from_json(plan.to_json()).measured
    assert [group.kind.calls for group in plan.groups] == [1] * len(plan.groups)
    model.zero_grad()
    engine.apply(model, "layers.*")
    assert same(steps(fresh(Plain), batches()), steps(model, batches()))


class Odd(nn.Module):
    """A block with a statistic, random numbers and a result that is written to."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        """Run."""
        h = self.norm(x.flatten(0, -2)).view_as(x)
        h = nn.functional.dropout(self.up(h), 0.3, training=self.training)
        return x + h.neg().mul_(0.5).tanh()


def test_nothing_changes_but_the_times():
    """Whether times are measured or not, statistics and random numbers are the same."""

    def train(options):
        model = fresh(Plain, 3, Odd)
        if options is not None:
            engine = SelectiveCheckpoint(budget=0.7, **options)
            engine.apply(model, "layers.*")
        torch.manual_seed(1)
        found = steps(model, batches(4))
        return [*found, *(buffer.clone() for buffer in model.buffers())]

    plain = train(None)
    assert same(plain, train({}))
    assert same(plain, train({"roofline": CARD}))


def test_a_profile_leaves_the_model_as_it_is():
    """A profile changes neither buffers nor gradients nor random numbers."""
    model = fresh(Plain, 3, Odd)
    before = [buffer.clone() for buffer in model.buffers()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    plan = SelectiveCheckpoint(budget=1.0).plan(model, EXAMPLE, blocks="layers.*", profile=True)
    assert plan.measured
    assert same(before, list(model.buffers()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_what_cannot_run_is_not_profiled():
    """A model without values, and one that will be compiled, is refused."""
    engine = SelectiveCheckpoint(budget=0.7)
    with torch.device("meta"):
        model = Plain()
    with pytest.raises(ValueError, match="once it has its parameters"):
        engine.plan(model, EXAMPLE, blocks="layers.*", profile=True)
    with pytest.raises(ValueError, match="leave one of the two out"):
        engine.plan(fresh(Plain), EXAMPLE, blocks="layers.*", profile=True, compiled=True)
    assert followed(engine) is None


def timed(func, *args, known=None):
    """Return what a clock calls and measures for an operator."""
    clock = Clock(Estimator(Roofline.of("cpu")), set() if known is None else known)
    with Counting() as mode:
        output = clock.run(func, args, {})
    clock.ms(func, args, {}, output)
    return mode.of(func._schema.name.removeprefix("aten::")), clock.spans[0] is not None


def test_a_first_call_does_not_count():
    """A first call may compile or load what it needs: it is repeated, or else not counted."""
    x, known = torch.ones(4), set()
    assert timed(aten.sin.default, x, known=known) == (2, True)
    assert timed(aten.sin.default, x, known=known) == (1, True)
    assert timed(aten.sin.default, torch.ones(5), known=known) == (2, True)
    assert timed(aten.sin_.default, x, known=known) == (1, False)
    assert timed(aten.sin_.default, x, known=known) == (1, True)
    assert timed(aten.native_dropout.default, x, 0.5, True, known=known) == (1, False)
    assert timed(aten.native_dropout.default, torch.ones(6), 0.0, True, known=known) == (2, True)


def test_what_is_not_measured_is_not_called_twice():
    """Of other devices nothing is measured."""
    assert timed(aten.sin.default, torch.empty(4, device="meta")) == (1, False)
    assert timed(aten.ones.default, [4]) == (1, False)


def test_an_estimate_as_far_off_as_the_others():
    """What was never measured takes its estimate, times what the others took over theirs."""

    class Fixed(Clock):
        def __init__(self, *spans):
            super().__init__(Estimator(), set())
            self.spans = [None if ms is None else _Took(ms) for ms in spans]

    class _Took:
        def __init__(self, took):
            self.took = took

        def ms(self):
            return self.took

    ops = (Op(0, "a", ms=1.0), Op(1, "v", view=True), Op(2, "b", ms=2.0), Op(3, "c", ms=5.0))
    times = Times(Estimator())
    for name, spans in (("x", (7.0, 3.0, None)), ("y", (3.0, 30.0, None)), ("y", (4.0, 5.0, None))):
        times.add(name, Fixed(*spans))
    # As of another batch, which has other operators.
    times.add("x", Fixed(100.0))
    for block in times.settled([Kept("x", ops), Kept("y", ops)]):
        assert [op.ms for op in block.ops] == [4.0, 0.0, 5.0, 15.0]
    assert [op.ms for op in ops] == [1.0, 0.0, 2.0, 5.0]
    # Blocks that nothing is known of keep their estimates.
    (other,) = Times(Estimator()).settled([Kept("z", ops)])
    assert other.ops == ops
