"""`ctxcarry.process_groups`, and torch's own current process group, in other threads."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch.distributed")

import torch.distributed as dist
from torch.distributed._dist2 import current_process_group, process_group

import ctxcarry
from ctxcarry import process_groups


@pytest.fixture
def groups(world):
    """Make two groups of a world of eight ranks."""
    return dist.new_group([0, 1]), dist.new_group([0, 2, 4, 6])


def current():
    """Return the groups of both roles, or None."""
    return process_groups.current("tp", None), process_groups.current("dp", None)


def none_current():
    """Return the process group that torch has as current, if any."""
    return current_process_group()


# By role


def test_roles_nest_and_end_with_their_block(groups):
    """Inner roles are added to the outer ones or replace them, until the block ends."""
    tp, dp = groups
    with process_groups.use(tp=tp):
        with process_groups.use(dp=dp):
            assert ((tp, dp), ("tp", "dp")) == (current(), process_groups.roles())
            with process_groups.use(tp=dp):
                assert (dp, dp) == current()
            assert (tp, dp) == current()
        assert ((tp, None), ("tp",)) == (current(), process_groups.roles())
    assert ((None, None), ()) == (current(), process_groups.roles())


def test_roles_end_with_a_block_that_raises(groups):
    """An exception passes through, and the roles are gone."""
    with pytest.raises(KeyError), process_groups.use(tp=groups[0]):
        raise KeyError
    assert () == process_groups.roles()


def test_missing_role_says_what_there_is_and_the_fix(groups):
    """Asking for a role that is not set names those that are, and how to set it."""
    with pytest.raises(LookupError, match=r"'tp'.*none.*use\(tp="):
        process_groups.current("tp")
    with process_groups.use(dp=groups[1]), pytest.raises(LookupError, match="Current: dp"):
        process_groups.current("tp")


@pytest.mark.parametrize("wrong", [None, 0, "tp", dist.ReduceOp])
def test_what_is_no_group_is_an_error_at_once(wrong):
    """What is no group is refused by name, and no role is set."""
    with pytest.raises(TypeError, match=r"use\(tp="), process_groups.use(tp=wrong):
        pass
    assert () == process_groups.roles()


def test_rank_outside_of_a_group_is_told(world):
    """What new_group gives to a rank outside of the group is refused, as it is no group."""
    outside = dist.new_group([1, 2])
    with pytest.raises(TypeError, match="leaves the role out"), process_groups.use(tp=outside):
        pass


def test_roles_are_lost_in_a_plain_pool(groups, worker):
    """Without ctxcarry a worker has no role, which is the fault."""
    with process_groups.use(tp=groups[0]):
        assert (None, None) == worker.submit(current).result()


def test_roles_are_carried(groups, carrying):
    """A task has its submitter's roles, and the next one none."""
    tp, dp = groups
    with process_groups.use(tp=tp, dp=dp):
        assert (tp, dp) == carrying.submit(current).result()
    assert (None, None) == carrying.submit(current).result()


def test_task_may_use_roles_of_its_own(groups, carrying):
    """Roles that a task sets are over the carried ones, and stay in it."""
    tp, dp = groups

    def work():
        with process_groups.use(dp=dp):
            inside = current()
        return inside, current()

    with process_groups.use(tp=tp):
        assert ((tp, dp), (tp, None)) == carrying.submit(work).result()
        assert (tp, None) == current()


def test_roles_follow_an_active_block_and_a_thread(groups, worker):
    """An active block in another thread has the roles, and takes them away again."""
    tp, dp = groups
    with process_groups.use(tp=tp):
        snapshot = ctxcarry.capture()

    def work():
        with process_groups.use(dp=dp):
            with snapshot.active():
                inside = current()
            return inside, current()

    assert ((tp, None), (None, dp)) == worker.submit(work).result()


def test_roles_are_carried_without_the_other_variables(groups, worker):
    """By their own carrier the roles are carried alone, and can be left out alone."""
    with process_groups.use(tp=groups[0]):
        alone = ctxcarry.capture(only="process_groups").wrap(current)
        without = ctxcarry.capture(exclude="process_groups").wrap(current)
        with ctxcarry.policy(clear="process_groups"):
            cleared = ctxcarry.bind(current)
    found = [worker.submit(fn).result() for fn in (alone, without, cleared)]
    assert [(groups[0], None), (None, None), (None, None)] == found


def test_explain_names_roles_and_sizes(groups):
    """Explain names each role with the size of its group."""
    with process_groups.use(tp=groups[0], dp=groups[1]):
        text = ctxcarry.capture().explain()
    assert "process_groups: captured: tp of 2 ranks, dp of 4 ranks" in text


# Torch's own


def test_torchs_group_is_lost_in_a_plain_pool(groups, worker):
    """Without ctxcarry a worker has no current group, which is the fault."""
    with process_group(groups[0]):
        assert worker.submit(none_current).result() is None


def test_torchs_group_is_carried(groups, carrying):
    """A task has the very group of its submitter, and the next one none."""
    with process_group(groups[0]), process_group(groups[1]):
        assert groups[1] is carrying.submit(none_current).result()
    assert carrying.submit(none_current).result() is None
    assert none_current() is None


def test_task_may_enter_and_leave_another_group(groups, carrying):
    """A task that enters another group has the carried one again after."""

    def work():
        with process_group(groups[1]):
            inside = none_current()
        return inside, none_current()

    with process_group(groups[0]):
        assert (groups[1], groups[0]) == carrying.submit(work).result()
        assert groups[0] is none_current()


def test_no_group_is_a_state_too(groups, worker):
    """A task handed over without a group has none in a worker with one, which keeps it."""
    bound = ctxcarry.bind(none_current)

    def work():
        with process_group(groups[0]):
            return bound(), none_current()

    assert (None, groups[0]) == worker.submit(work).result()


def test_group_of_a_generator_goes_with_it(groups, worker):
    """A carried generator has the group it entered on whichever thread resumes it."""

    @ctxcarry.carry_context
    def generate():
        with process_group(groups[0]):
            yield none_current()
            yield none_current()
        yield none_current()

    generator = generate()
    found = [next(generator), none_current(), worker.submit(next, generator).result()]
    assert [groups[0], None, groups[0]] == found
    assert next(generator) is None
    assert worker.submit(none_current).result() is None


def test_collective_in_a_task_uses_the_carried_group(groups, carrying):
    """Code in a task that asks for the current group can compute with it."""

    def work():
        return none_current().size(), dist.get_process_group_ranks(process_groups.current("dp"))

    with process_group(groups[0]), process_groups.use(dp=groups[1]):
        assert (2, [0, 2, 4, 6]) == carrying.submit(work).result()
    assert torch.is_grad_enabled() is True
