"""Several policies together, those that count, and what stands for a policy."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import torch
from ctxcarry_checkpoint import policies
from ctxcarry_checkpoint._ops import Action, Call
from ctxcarry_checkpoint._policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

aten = torch.ops.aten
MM, BMM, RELU = aten.mm.default, aten.bmm.default, aten.relu.default
OPS = [MM, BMM, aten.addmm.default, RELU, aten.silu.default]
A_MATRIX = torch.empty(2, 2, device="meta")

calls = st.lists(st.sampled_from(OPS), max_size=24)
actions = st.sampled_from(list(Action))
rules = st.one_of(
    st.builds(
        lambda op, verb: verb(op),
        st.sampled_from(OPS),
        st.sampled_from([policies.save, policies.recompute, policies.offload]),
    ),
    st.builds(policies.matmuls, st.integers(1, 4), actions, st.integers(0, 3)),
    st.builds(policies.others, actions),
)


def call(op):
    """Make a call of an operator."""
    return Call(op, 0, 0, (A_MATRIX, A_MATRIX, A_MATRIX), {}, None)


def decisions(policy, ops):
    """Return what a policy decides in one forward."""
    decider = policy.start()
    return [decider.decide(call(op)) for op in ops]


@given(st.lists(rules, max_size=5), calls)
@settings(deadline=None)
def test_first_opinion_decides(parts, ops):
    """Of several policies the first with an opinion decides, and those behind do not count."""
    deciders = [part.start() for part in parts]
    expected = []
    for op in ops:
        opinions = (decider.decide(call(op)) for decider in deciders)
        expected.append(next((each for each in opinions if each is not None), None))
    assert decisions(policies.first(*parts), ops) == expected


@given(rules, rules, rules, calls)
@settings(deadline=None)
def test_brackets_do_not_matter(a, b, c, ops):
    """However three policies are put together, their order alone decides."""
    expected = decisions(policies.first(a, b, c), ops)
    assert decisions((a | b) | c, ops) == expected
    assert decisions(a | (b | c), ops) == expected
    assert decisions(policies.first(a, policies.first(b, c)), ops) == expected


@given(st.integers(1, 5), st.integers(0, 5), calls)
@settings(deadline=None)
def test_every_kth_product(every, start, ops):
    """Every k-th product is saved, whatever kind it is, from the given one on."""
    products = [at for at, op in enumerate(ops) if op not in {RELU, aten.silu.default}]
    found = decisions(policies.matmuls(every, start=start), ops)
    saved = [at for at, action in enumerate(found) if action is Action.SAVE]
    assert saved == products[start::every]
    assert set(found) <= {Action.SAVE, None}


def test_each_forward_counts_anew():
    """What one forward counts has no part in another one, also while both run."""
    policy = policies.matmuls() | policies.full()
    one, other = policy.start(), policy.start()
    found = [decider.decide(call(MM)) for decider in (one, other, one, other)]
    assert found == [Action.SAVE, Action.SAVE, Action.RECOMPUTE, Action.RECOMPUTE]


def test_threads_share_a_policy():
    """Forwards on several threads do not count each other's products."""
    policy = policies.first(policies.matmuls(every=3), policies.full())
    ops = [MM] * 300
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: decisions(policy, ops), range(8)))
    assert found == [decisions(policy, ops)] * 8
    assert found[0].count(Action.SAVE) == 100


def test_a_policy_that_counts_is_asked_within_a_forward():
    """A policy that counts refuses to decide outside of a forward, and says how it does."""
    with pytest.raises(TypeError, match=r"matmuls\(every=2.*\.start\(\)\.decide\(call\)"):
        policies.matmuls().decide(call(MM))


@pytest.mark.parametrize(("every", "start"), [(0, 0), (-1, 0), (2, -1)])
def test_numbers_of_matmuls(every, start):
    """Numbers that no counting can follow are refused."""
    with pytest.raises(ValueError, match=f"given {every} and {start}"):
        policies.matmuls(every, start=start)


def test_what_several_are_together():
    """Several are static if all are, and read sizes or modules if one does."""
    plain, by_name = policies.save(MM), policies.modules("mlp")
    by_shape = policies.matmuls_by_shape((1, 1))
    asked = policies.custom(lambda *_: True)
    assert (plain | plain).static
    assert not (plain | asked).static
    assert (plain | by_shape).by_shape
    assert not (plain | by_name).by_shape
    assert (plain | by_name).needs_modules
    assert not (plain | by_shape).needs_modules


def test_policies_are_keys():
    """Each policy is a key of its own, also one of a function that has no hash."""

    class Function:
        __hash__ = None

        def __call__(self, ctx, op, *args, **kwargs):
            return True

    function = Function()
    made = [policies.custom(function), policies.custom(function), policies.save(MM)]
    assert len({*made, *made}) == 3


def test_or_takes_policies_only():
    """Something that is no policy is not taken for one."""
    with pytest.raises(TypeError):
        policies.save(MM) | 3


def test_policy_of_the_user():
    """A subclass with nothing but `decide` is a policy among others."""

    class Silu(Policy):
        def decide(self, given):
            return Action.OFFLOAD if given.op is aten.silu.default else None

    policy = policies.save(MM) | Silu()
    assert decisions(policy, [MM, aten.silu.default, RELU]) == [Action.SAVE, Action.OFFLOAD, None]


def save_mm(ctx, op, *args, **kwargs):
    """Decide as functions for torch's selective checkpoints do."""
    return op is MM


def save_one_of(wanted, ctx, op, *args, **kwargs):
    """Decide with an argument of its own."""
    return op in wanted


@pytest.mark.parametrize(
    "given",
    [
        policies.save(MM) | policies.full(),
        [MM],
        (aten.mm,),
        {MM},
        frozenset({"aten.mm"}),
        MM,
        aten.mm,
        "aten.mm",
        save_mm,
        functools.partial(save_one_of, {MM}),
    ],
)
def test_what_stands_for_a_policy(given):
    """What torch's checkpoints take stands for a policy, and what `save` takes."""
    found = decisions(policies.as_policy(given), [MM, RELU])
    assert found[0] is Action.SAVE
    assert found[1] in {None, Action.RECOMPUTE}


def test_an_action_stands_for_everything():
    """An action alone is for everything."""
    assert decisions(policies.as_policy(Action.OFFLOAD), [RELU]) == [Action.OFFLOAD]


def test_no_operators_at_all():
    """An empty list saves nothing, as torch's checkpoints have it."""
    assert decisions(policies.as_policy([]), [MM]) == [Action.RECOMPUTE]


def test_first_takes_what_stands_for_a_policy():
    """Parts of several may be what stands for a policy."""
    policy = policies.first([MM], Action.OFFLOAD)
    assert decisions(policy, [MM, RELU]) == [Action.SAVE, Action.OFFLOAD]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, TypeError, "a policy is one of ctxcarry_checkpoint.policies.*given 3"),
        (None, TypeError, "given None"),
        (Policy, TypeError, "given <class"),
        (policies.attention, TypeError, r"call it: policies.attention\(\.\.\.\)"),
        ([torch.mm], TypeError, r"closest: torch.ops.aten.mm\b"),
        ("aten.mmm", ValueError, r"closest: aten.mm\b"),
    ],
)
def test_what_does_not(given, error, message):
    """Anything else is refused, with what is meant perhaps."""
    with pytest.raises(error, match=message):
        policies.as_policy(given)
