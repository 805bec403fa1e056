"""Functions that decide, in the style of torch's selective checkpoints."""

import functools

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import policies
from ctxcarry_checkpoint._ops import Action, Call
from torch.utils import checkpoint

MM = torch.ops.aten.mm.default


def decide(function):
    """Return what a function that returns the given decides."""
    policy = policies.custom(function)
    return policy.start().decide(Call(MM, 0, 0, ("left", "right"), {"out_dtype": 1}, "result"))


CASES = [
    (True, Action.SAVE),
    (False, Action.RECOMPUTE),
    *[(action, action) for action in Action],
]


@pytest.mark.parametrize(("said", "action"), CASES)
def test_answers(said, action):
    """An action stands for itself, and True and False for saving and recomputing."""
    assert decide(lambda *_, **__: said) is action


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("MUST_SAVE", Action.SAVE),
        ("PREFER_SAVE", Action.SAVE),
        ("MUST_RECOMPUTE", Action.RECOMPUTE),
        ("PREFER_RECOMPUTE", Action.RECOMPUTE),
        ("MUST_CPU_OFFLOAD", Action.OFFLOAD),
        ("PREFER_CPU_OFFLOAD", Action.OFFLOAD),
    ],
)
def test_answers_of_torch(name, action):
    """Each CheckpointPolicy of torch's has its action."""
    said = getattr(getattr(checkpoint, "CheckpointPolicy", None), name, None)
    if said is None:
        pytest.skip(f"torch {torch.__version__} has no CheckpointPolicy.{name}")
    assert decide(lambda *_, **__: said) is action


def test_every_answer_of_torch_is_known():
    """A new CheckpointPolicy of torch's is noticed."""
    for said in getattr(checkpoint, "CheckpointPolicy", ()):
        assert isinstance(decide(lambda *_, said=said, **__: said), Action)


def test_what_the_function_is_given():
    """It gets the context of a forward, the overload, and the arguments of the call."""
    seen = []

    def function(ctx, op, *args, **kwargs):
        seen.append((ctx.is_recompute, ctx.op_output, op, args, kwargs))
        return True

    decide(function)
    assert seen == [(False, "result", MM, ("left", "right"), {"out_dtype": 1})]


@pytest.mark.parametrize("said", [None, 1, 0, "save", "MUST_SAVE"])
def test_other_answers(said):
    """Any other answer is an error with the function, the answer, and those there are."""

    def forgetful(ctx, op, *args, **kwargs):
        return said

    for function in (forgetful, functools.partial(forgetful)):
        with pytest.raises(TypeError, match=rf"forgetful returned {said!r}, .*an Action, or True"):
            decide(function)


def test_functions_are_always_asked():
    """What a function says cannot be remembered."""
    assert not policies.custom(lambda *_: True).static
    assert not policies.per_forward(lambda: lambda *_: True).static


def test_function_for_each_forward():
    """A function that counts is made anew for each forward."""

    def make():
        seen = []

        def every_second(ctx, op, *args, **kwargs):
            seen.append(op)
            return len(seen) % 2 == 1

        return every_second

    policy = policies.per_forward(make)
    one, other = policy.start(), policy.start()
    call = Call(MM, 0, 0, (), {}, None)
    found = [decider.decide(call) for decider in (one, one, other, one)]
    assert found == [Action.SAVE, Action.RECOMPUTE, Action.SAVE, Action.SAVE]


def test_function_that_makes_none():
    """A policy itself, given for what makes one, is refused with the right way."""

    def policy():
        return True

    with pytest.raises(TypeError, match=r"returned True. Use custom\(.*policy\)"):
        policies.per_forward(policy).start()


@pytest.mark.parametrize("name", ["custom", "per_forward"])
def test_what_cannot_be_called(name):
    """Something that is no function is refused at once."""
    with pytest.raises(TypeError, match=rf"{name}\(\) takes a function; given 3"):
        getattr(policies, name)(3)
