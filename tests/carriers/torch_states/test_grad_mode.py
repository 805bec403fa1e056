"""Grad mode, and tasks that leave a state changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch_states_subjects import AMBIENT, ON_CPU, ONES, entered

import ctxcarry


def uncarried(pool, fn):
    """Call `fn` on a worker of a carrying `pool` as a plain pool would."""
    return ThreadPoolExecutor.submit(pool, fn).result()


def test_no_grad_reaches_a_real_network(carrying):
    """A network that a worker calls under the submitter's no_grad records nothing."""
    net = torch.nn.Linear(4, 1)
    with torch.no_grad():
        without = carrying.submit(net, ONES)
    assert (False, True) == (
        without.result().requires_grad,
        carrying.submit(net, ONES).result().requires_grad,
    )


def test_task_may_enable_grad_within_carried_no_grad(carrying):
    """A task's own enable_grad block works and ends in the carried no_grad."""

    def work():
        before = torch.is_grad_enabled()
        with torch.enable_grad():
            inside = torch.is_grad_enabled()
        return before, inside, torch.is_grad_enabled()

    with torch.no_grad():
        future = carrying.submit(work)
    assert (False, True, False) == future.result()


def test_backward_in_a_worker_is_as_inline(carrying):
    """Gradients computed by a carried task are those computed inline."""
    net = torch.nn.Linear(4, 1)

    def work():
        with torch.enable_grad():
            return torch.autograd.grad(net(ONES).sum(), net.weight)[0]

    with torch.no_grad(), torch.autocast(*ON_CPU):
        inline, carried = work(), carrying.submit(work).result()
    assert inline.dtype == carried.dtype
    assert torch.equal(inline, carried)


def test_map_carries_one_state_for_all_items(carrying):
    """All items of one map call see the grad mode of the call."""
    with torch.no_grad():
        results = carrying.map(lambda _: torch.is_grad_enabled(), range(3))
    assert [False, False, False] == list(results)


def test_state_is_the_submitters_and_not_the_one_when_the_task_runs(carrying, gate):
    """The submitter may leave its no_grad block before the task starts."""
    with torch.no_grad():
        waiting = carrying.submit(torch.is_grad_enabled)
    gate.set()
    assert waiting.result() is False


def test_initializer_is_the_base_of_a_carrying_pool(state):
    """What an initializer sets in a worker stands in for what the submitter has not set."""

    def initialize():
        torch.set_grad_enabled(False)
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_enabled("cpu", True)

    with ctxcarry.executor(1, initializer=initialize) as pool:
        unset = pool.submit(state).result()
        with torch.autocast(*ON_CPU):
            own = pool.submit(state).result()
        again = pool.submit(state).result()
    assert (False, torch.float16) == (unset["grad"], unset["autocast dtypes"]["cpu"])
    assert (False, torch.bfloat16) == (own["grad"], own["autocast dtypes"]["cpu"])
    assert unset == again


def test_initializer_in_inference_mode_is_the_base_of_a_carrying_pool():
    """A pool whose workers are in inference mode for good makes inference tensors."""
    guard = torch.inference_mode()
    with ctxcarry.executor(1, initializer=guard.__enter__) as pool:
        made = pool.submit(torch.ones, 2).result()
        modes = pool.submit(
            lambda: (torch.is_inference_mode_enabled(), torch.is_grad_enabled())
        ).result()
        # The guard must end on the thread where it began.
        pool.submit(guard.__exit__, None, None, None).result()
    assert made.is_inference()
    assert (True, False) == modes


@pytest.fixture(params=["executor", "install", "carry_context", "wrap_executor"])
def initialized(request):
    """Give a function that makes a pool with an initializer, and the function to hand over."""
    if request.param == "executor":
        yield lambda fn, start: (ctxcarry.executor(1, initializer=start), fn)
        return
    if request.param == "install":
        ctxcarry.install("executor")
    wrap = ctxcarry.wrap_executor if request.param == "wrap_executor" else lambda pool: pool
    mark = ctxcarry.carry_context if request.param == "carry_context" else lambda fn: fn
    try:
        yield lambda fn, start: (wrap(ThreadPoolExecutor(1, initializer=start)), mark(fn))
    finally:
        ctxcarry.uninstall("executor")


def test_initializer_is_the_base_in_every_pool(initialized):
    """Workers that an initializer put into no_grad stay so for a submitter that set nothing."""
    pool, work = initialized(torch.is_grad_enabled, lambda: torch.set_grad_enabled(False))
    with pool:
        assert pool.submit(work).result() is False


def test_plain_worker_with_other_state_runs_a_bound_task_exactly(worker):
    """Grad mode is on in a bound task although its thread had switched it off."""

    def work():
        with torch.no_grad():
            return bound(), torch.is_grad_enabled()

    bound = ctxcarry.bind(torch.is_grad_enabled)
    assert (True, False) == worker.submit(work).result()


def _leak_grad():
    torch.set_grad_enabled(False)


def _leak_autocast():
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_enabled("cpu", True)


def _leak_autocast_region():
    torch.autocast("cpu", torch.float16).__enter__()


_held = []


def _leak_inference():
    guard = torch.inference_mode()
    guard.__enter__()
    # The guard ends where it is freed, so it must outlive the thread.
    _held.append(guard)


LEAKS = {
    "grad": _leak_grad,
    "autocast": _leak_autocast,
    "autocast region": _leak_autocast_region,
    "inference": _leak_inference,
}


@pytest.mark.parametrize("ambient", ["nothing", "no_grad", "bfloat16"])
@pytest.mark.parametrize("leak", LEAKS)
def test_what_a_task_leaves_changed_does_not_reach_the_next_task(leak, ambient, state):
    """The task after one that left its thread changed is in its own submitter's state."""
    with ctxcarry.executor(1) as pool, entered(AMBIENT[ambient]):
        expected = pool.submit(state).result()
        pool.submit(LEAKS[leak]).result()
        actual = pool.submit(state).result()
    assert expected == actual


@pytest.mark.parametrize("ambient", ["nothing", "no_grad", "inference_mode", "bfloat16"])
@pytest.mark.parametrize("leak", LEAKS)
def test_worker_is_as_before_once_a_careless_task_has_run(leak, ambient, state):
    """As `executor` promises, the worker is as before even if the task left a context changed."""
    with ctxcarry.executor(1) as pool:
        before = uncarried(pool, state)
        with entered(AMBIENT[ambient]):
            pool.submit(LEAKS[leak]).result()
        after = uncarried(pool, state)
    assert before == after


@pytest.mark.parametrize("leak", LEAKS)
def test_check_leaks_names_what_was_left_and_puts_it_back(leak, state):
    """With check_leaks the careless task fails, naming the context, and the worker is as before."""
    with ctxcarry.executor(1, check_leaks=True) as pool:
        before = uncarried(pool, state)
        error = pool.submit(LEAKS[leak]).exception()
        after = uncarried(pool, state)
    names = {"grad": "torch.grad_mode", "inference": "torch.inference_mode"}
    assert isinstance(error, ctxcarry.LeakError)
    assert names.get(leak, "torch.autocast") in str(error)
    assert before == after
