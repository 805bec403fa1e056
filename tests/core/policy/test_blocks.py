"""Policies in force for a block: nested, left, and of one thread or task only."""

import asyncio
from contextvars import copy_context

import pytest
from policy_subjects import expected

from ctxcarry import LeakError, policy, suppress
from ctxcarry._policy import ambient_policy

NESTED = {
    "inner wins": ([policy(clear="a"), policy(unchanged="a")], expected("near", a="far")),
    "inner propagates again": ([suppress("a"), policy(propagate="a")], expected("near")),
    "both hold": (
        [policy(clear="a"), policy(unchanged="b")],
        expected("near", a=None, b="far"),
    ),
    "name over outer star": ([suppress(), policy(propagate="a")], expected("far", a="near")),
    "inner star covers all": ([policy(clear="a"), suppress()], expected("far")),
    "inner star but one": (
        [policy(clear="a"), policy(propagate="b", unchanged="*")],
        expected("far", b="near"),
    ),
    "three deep": (
        [suppress(), policy(clear="a"), policy(propagate="b")],
        expected("far", a=None, b="near"),
    ),
    "suppress twice": ([suppress("a"), suppress("b")], expected("near", a="far", b="far")),
}


@pytest.mark.parametrize("case", NESTED)
def test_nesting(case, scene):
    """The innermost policy that names a context decides (feature 11)."""
    policies, seen = NESTED[case]

    class All:
        def __enter__(self):
            for one in policies:
                one.__enter__()

        def __exit__(self, *_):
            for one in reversed(policies):
                one.__exit__(None, None, None)

    assert seen == scene.run(All())


def test_leaving_brings_back_the_outer_policy(scene):
    """After a block the policy outside it is in force again."""
    scene.set_all("near")
    with suppress("a"):
        with suppress("b"):
            scene.registry.capture()
        inside = scene.registry.capture()
    outside = scene.registry.capture()
    scene.set_all("far")
    assert expected("near", a="far") == inside.run(scene.seen)
    assert expected("near") == outside.run(scene.seen)


def test_policy_is_left_by_an_exception(scene):
    """An exception leaves the block and the policy."""
    with pytest.raises(ValueError, match="mine"), suppress():
        raise ValueError("mine")
    assert expected("near") == scene.run(policy())


def test_policy_can_be_entered_again(scene):
    """One policy may be entered again, and inside itself."""
    nothing = suppress("a")
    for _ in range(2):
        with nothing as entered, nothing, nothing:
            assert entered is nothing
            scene.set_all("near")
            snapshot = scene.registry.capture()
        scene.set_all("far")
        assert expected("near", a="far") == snapshot.run(scene.seen)
    assert expected("near") == scene.run(policy())


def test_policy_of_one_thread_is_not_anothers(scene, in_thread):
    """A policy holds in the thread that entered it."""
    with suppress():
        assert in_thread(ambient_policy.get) is None
        assert in_thread(scene.run, policy()) == expected("near")


def test_left_in_another_thread(in_thread):
    """A policy entered in one thread and left in another is a LeakError, and holds on."""
    one = suppress("a")
    with one:

        def elsewhere():
            with pytest.raises(LeakError, match="not the innermost"):
                one.__exit__(None, None, None)

        in_thread(elsewhere)
        assert ambient_policy.get().policy == one
    assert ambient_policy.get() is None


def test_left_out_of_order():
    """A policy that is not the innermost one cannot be left."""
    outer, inner = suppress("a"), policy(clear="a")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(LeakError, match="out of order"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert ambient_policy.get() is None


def test_left_without_being_entered():
    """A policy that was never entered cannot be left."""
    with pytest.raises(LeakError):
        suppress().__exit__(None, None, None)


def test_left_in_the_wrong_place_does_not_mask(in_thread):
    """The user's exception stays what the caller sees when a policy is left in a wrong place."""

    def body():
        with suppress():
            yield

    generator = body()
    next(generator)
    try:

        def elsewhere():
            with pytest.raises(ValueError, match="mine") as caught:
                generator.throw(ValueError("mine"))
            return getattr(caught.value, "__notes__", [])

        assert "innermost" in "".join(in_thread(elsewhere))
    finally:
        ambient_policy.set(None)


def test_left_by_a_generator_in_a_copied_context(scene):
    """A generator may leave the block in a copy of the Context that it entered it in (trap 3)."""

    def body():
        with suppress("a"):
            yield scene.registry.capture()
        yield scene.registry.capture()

    def drive():
        generator = body()
        inside = next(generator)
        outside = copy_context().run(next, generator)
        assert ambient_policy.get() is not None  # this Context did not see it left
        generator.close()
        return inside, outside

    scene.set_all("near")
    inside, outside = copy_context().run(drive)
    scene.set_all("far")
    assert expected("near", a="far") == inside.run(scene.seen)
    assert expected("near") == outside.run(scene.seen)


def test_tasks_have_policies_of_their_own(scene):
    """Policies of interleaved asyncio tasks do not mix."""

    async def work(which):
        with which:
            await asyncio.sleep(0)
            taken = scene.registry.capture()
            await asyncio.sleep(0)
        return taken

    async def main():
        scene.set_all("near")
        taken = await asyncio.gather(work(suppress("a")), work(suppress("b")), work(policy()))
        scene.set_all("far")
        return [snapshot.run(scene.seen) for snapshot in taken]

    seen = [expected("near", a="far"), expected("near", b="far"), expected("near")]
    assert seen == asyncio.run(main())
