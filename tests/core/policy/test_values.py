"""How policies are made, and what they may name."""

from contextvars import ContextVar

import pytest

import ctxcarry
from ctxcarry import UnknownCarrierError, policy, suppress


@pytest.mark.parametrize(
    ("one", "other"), [("propagate", "clear"), ("clear", "unchanged"), ("propagate", "unchanged")]
)
@pytest.mark.parametrize("name", ["a", "*"])
def test_overlap_is_an_error(one, other, name):
    """A name in two arguments is a ValueError that says which and where."""
    with pytest.raises(ValueError, match=f"both {one} and {other}"):
        policy(**{one: ["b", name], other: name})


def test_same_name_twice_in_one_argument():
    """To say the same thing twice is no contradiction."""
    assert policy(clear="a") == policy(clear=["a", "a"])


@pytest.mark.parametrize("wrong", [3, [3], [None], [ContextVar("v")]])
def test_names_are_strings(wrong):
    """Something other than names is a TypeError."""
    with pytest.raises(TypeError):
        policy(clear=wrong)


def test_policies_compare_and_show():
    """Policies that say the same are equal, and their repr says it."""
    assert policy(clear=["a", "b"]) == policy(clear=["b", "a"])
    assert hash(policy(clear="a")) == hash(policy(clear="a"))
    assert policy(clear="a") != policy(unchanged="a")
    assert policy(clear="a") != "clear"
    assert "policy(clear=['a'])" == repr(policy(clear="a"))
    assert suppress("a") == policy(unchanged="a")
    assert suppress() == policy(unchanged="*")


def test_unknown_name(scene):
    """A name that nobody has is an error at the hand-over, with a suggestion."""
    with (
        pytest.raises(UnknownCarrierError, match="Did you mean 'named'"),
        policy(clear="namd"),
    ):
        scene.registry.capture()
    with pytest.raises(UnknownCarrierError, match="named"):
        ctxcarry.executor(policy=policy(clear="namd"), registry=scene.registry)


def test_unknown_name_in_the_default_registry():
    """The functions of the package check names too."""
    with pytest.raises(UnknownCarrierError), suppress("test.nothing"):
        ctxcarry.capture()
    with pytest.raises(UnknownCarrierError):
        ctxcarry.carry_context(only="test.nothing")(print)


def test_names_of_frameworks_that_are_not_imported():
    """A framework's context can be named before the framework is imported."""
    with suppress("torch.grad_mode", "triton.allocator", "spmd_types.state"):
        ctxcarry.capture()


@pytest.mark.parametrize("wrong", ["clear", {"clear": "a"}, object()])
def test_executor_with_something_else(wrong):
    """What is no policy is a TypeError that says how to make one."""
    with pytest.raises(TypeError, match=r"ctxcarry\.policy"):
        ctxcarry.executor(policy=wrong)
