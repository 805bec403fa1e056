"""Grad mode, inference mode and autocast of real torch, carried to other threads and pauses."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import ctxcarry

ONES = torch.ones(2, 4)
TORCH = ("torch.inference_mode", "torch.grad_mode", "torch.autocast")
ON_CPU = ("cpu", torch.bfloat16)


@contextmanager
def set_autocast(device_type, dtype):
    """Enable autocast by its setters, as only those reach devices that are not there."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_dtype(device_type, dtype)
    torch.set_autocast_enabled(device_type, True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


def autocast(*args, **kwargs):
    """Return a function that makes an autocast region."""
    return lambda: torch.autocast(*args, **kwargs)


AMBIENT = {
    "nothing": (),
    "no_grad": (torch.no_grad,),
    "enable_grad in no_grad": (torch.no_grad, torch.enable_grad),
    "inference_mode": (torch.inference_mode,),
    "enable_grad in inference_mode": (torch.inference_mode, torch.enable_grad),
    "no inference_mode in inference_mode": (
        torch.inference_mode,
        lambda: torch.inference_mode(False),
    ),
    "no_grad in no inference_mode in inference_mode": (
        torch.inference_mode,
        lambda: torch.inference_mode(False),
        torch.no_grad,
    ),
    "inference_mode in no_grad": (torch.no_grad, torch.inference_mode),
    "bfloat16": (autocast(*ON_CPU),),
    "float16": (autocast("cpu", torch.float16),),
    "without weight cache": (autocast(*ON_CPU, cache_enabled=False),),
    "three deep": (autocast(*ON_CPU), autocast(*ON_CPU), autocast("cpu", torch.float16)),
    "cuda without CUDA": (lambda: set_autocast("cuda", torch.bfloat16),),
    "several device types": (
        autocast(*ON_CPU),
        lambda: set_autocast("cuda", torch.float16),
        lambda: set_autocast("xpu", torch.bfloat16),
        lambda: set_autocast("hpu", torch.float16),
    ),
    "autocast in inference_mode": (torch.inference_mode, autocast(*ON_CPU)),
    "inference_mode in autocast": (autocast(*ON_CPU), torch.inference_mode),
    "no_grad in autocast": (autocast(*ON_CPU), torch.no_grad),
    "off in autocast": (autocast("cpu", torch.float16), autocast("cpu", enabled=False)),
    "cpu off, cuda on": (
        lambda: set_autocast("cuda", torch.bfloat16),
        autocast("cpu", torch.float16),
        autocast("cpu", enabled=False),
    ),
    "off without weight cache": (autocast("cpu", enabled=False, cache_enabled=False),),
}

WAYS = {
    "run": lambda snapshot, fn: lambda: snapshot.run(fn),
    "wrap": lambda snapshot, fn: snapshot.wrap(fn),
    "active": lambda snapshot, fn: lambda: _in_block(snapshot, fn),
    "over nothing": lambda snapshot, fn: snapshot.over(ctxcarry.capture()).wrap(fn),
}


def uncarried(pool, fn):
    """Call `fn` on a worker of a carrying `pool` as a plain pool would."""
    return ThreadPoolExecutor.submit(pool, fn).result()


def _in_block(snapshot, fn):
    with snapshot.active():
        return fn()


def entered(managers):
    """Enter all of `managers`, the first outermost."""
    stack = ExitStack()
    for manager in managers:
        stack.enter_context(manager())
    return stack


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ambient", AMBIENT)
def test_worker_is_in_the_state_of_the_capture(ambient, way, worker, state):
    """A worker thread is in the very state that the capturing thread was in."""
    with entered(AMBIENT[ambient]):
        expected = state()
        bound = ctxcarry.capture()
    bound = WAYS[way](bound, state)
    assert expected == worker.submit(bound).result()


@pytest.mark.parametrize("way", ["run", "wrap", "active"])
@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("around", ["no_grad", "inference_mode", "several device types"])
def test_state_of_the_worker_gives_way_and_comes_back(ambient, around, way, worker, state):
    """What is set where the work runs is replaced by the snapshot and is back afterwards."""
    with entered(AMBIENT[ambient]):
        expected = state()
        snapshot = ctxcarry.capture()

    def work():
        with entered(AMBIENT[around]):
            before = state()
            inside = WAYS[way](snapshot, state)()
            return before, inside, state()

    before, inside, after = worker.submit(work).result()
    keys = {"grad", "inference", "autocast", "autocast cache", "autocast nesting"}
    # The dtype of a device type that is off says nothing about the work.
    dtypes = {t: d for t, d in expected["autocast dtypes"].items() if expected["autocast"][t]}
    assert {k: expected[k] for k in keys} == {k: inside[k] for k in keys}
    assert dtypes == {t: inside["autocast dtypes"][t] for t in dtypes}
    assert before == after


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("ambient", AMBIENT)
def test_each_carrier_keeps_its_contract_by_itself(ambient, name, worker):
    """A carrier applies what it captured, unsets its context for MISSING, and undoes both."""
    carrier = {carrier.name: carrier for carrier in ctxcarry.carriers()}[name]
    with entered(AMBIENT[ambient]):
        captured = carrier.capture()

    def undo(token):
        if token is not ctxcarry.UNCHANGED:
            carrier.undo(token)
        return carrier.capture()

    def work():
        found = [carrier.capture()]
        tokens = [carrier.apply(captured)]
        found.append(carrier.capture())
        tokens.append(carrier.apply(ctxcarry.MISSING))
        found.append(carrier.capture())
        return [*found, undo(tokens.pop()), undo(tokens.pop())]

    before, applied, unset, again, after = worker.submit(work).result()
    assert (captured, captured) == (applied, again)
    assert (before, before) == (unset, after)


@pytest.mark.parametrize("ambient", AMBIENT)
def test_task_that_raises_leaves_its_thread_as_it_was(ambient, carrying, state):
    """The worker thread is as before after a task that raised, too."""

    def fail():
        raise KeyError(state()["grad"])

    before = carrying.submit(state).result()
    with entered(AMBIENT[ambient]):
        grad = torch.is_grad_enabled()
        with pytest.raises(KeyError) as caught:
            carrying.submit(fail).result()
    assert grad == caught.value.args[0]
    assert before == carrying.submit(state).result()


@pytest.mark.parametrize("ambient", ["bfloat16", "inference_mode", "autocast in inference_mode"])
def test_activating_twice_is_as_once(ambient, worker, state):
    """A snapshot within the same snapshot changes nothing, and leaving it changes nothing."""
    with entered(AMBIENT[ambient]):
        expected = state()
        snapshot = ctxcarry.capture()

    def work():
        with snapshot.active():
            inner = snapshot.run(state)
            with snapshot.active():
                innermost = state()
            return inner, innermost, state()

    assert (expected, expected, expected) == worker.submit(work).result()


def test_equal_snapshot_does_not_touch_autocast(monkeypatch):
    """Activating a snapshot that equals what is active calls none of autocast's setters."""
    calls = []
    with torch.autocast(*ON_CPU):
        snapshot = ctxcarry.capture()
        with monkeypatch.context() as patched:
            for name in ("enabled", "dtype", "cache_enabled"):
                original = getattr(torch, f"set_autocast_{name}")

                def setter(*args, original=original, name=name):
                    calls.append(name)
                    original(*args)

                patched.setattr(torch, f"set_autocast_{name}", setter)
            snapshot.run(int)
    assert [] == calls


# Grad mode


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


# Inference mode


def test_tensor_made_in_a_carried_task_is_an_inference_tensor(carrying):
    """Tensors that a task makes under the submitter's inference mode are inference tensors."""
    net = torch.nn.Linear(4, 1)
    with torch.inference_mode():
        made = carrying.submit(net, ONES).result()
    plain = carrying.submit(net, ONES).result()
    assert (True, False) == (made.is_inference(), made.requires_grad)
    assert (False, True) == (plain.is_inference(), plain.requires_grad)


def test_plain_pool_makes_no_inference_tensor(worker):
    """Without ctxcarry the worker makes ordinary tensors, which is the fault (sglang#33470)."""
    with torch.inference_mode():
        made = worker.submit(torch.ones, 2).result()
    assert not made.is_inference()


def test_inplace_on_an_inference_tensor_works_in_a_carried_task(carrying):
    """An inference tensor can be changed in place by a carried task, as inline (sglang#33470)."""
    with torch.inference_mode():
        held = torch.zeros(2)
        carrying.submit(held.add_, 1).result()
    assert [1.0, 1.0] == held.tolist()
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        carrying.submit(held.add_, 1).result()


def test_task_may_leave_inference_mode_for_a_block(carrying, state):
    """A task's own inference_mode(False) block works and ends in the carried inference mode."""

    def work():
        before = state()
        with torch.inference_mode(False):
            made = torch.ones(2, requires_grad=True) * 2
        return before, made.requires_grad, made.is_inference(), state()

    with torch.inference_mode():
        before, requires_grad, inference, after = carrying.submit(work).result()
    assert (True, False) == (requires_grad, inference)
    assert before == after


# Autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_dtype_reaches_a_real_layer(dtype, carrying):
    """A layer that a worker calls computes in the submitter's autocast dtype."""
    lin = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=dtype):
        result = carrying.submit(lin, ONES)
    assert dtype == result.result().dtype
    assert torch.float32 == carrying.submit(lin, ONES).result().dtype


def test_autocast_that_is_off_in_the_submitter_is_off_in_the_worker(carrying):
    """A disabled region within an enabled one is what a task runs under."""
    lin = torch.nn.Linear(4, 4)
    with torch.autocast(*ON_CPU), torch.autocast("cpu", enabled=False):
        result = carrying.submit(lin, ONES).result()
    assert torch.float32 == result.dtype


def test_autocast_of_the_worker_is_off_for_a_submitter_without(worker):
    """A task whose submitter has no autocast runs without, in a thread that has it on."""
    lin = torch.nn.Linear(4, 4)
    bound = ctxcarry.bind(lin)

    def work():
        with torch.autocast(*ON_CPU):
            return bound(ONES).dtype, lin(ONES).dtype

    assert (torch.float32, torch.bfloat16) == worker.submit(work).result()


@pytest.mark.parametrize("outer", ["bfloat16", "off in autocast", "off without weight cache"])
def test_region_opened_by_the_task_is_as_inline(outer, carrying, nesting):
    """A task's own autocast region takes dtype, cache flag and depth from the carried ones."""

    def work():
        layer = torch.nn.Linear(4, 4)
        before = nesting()
        with torch.autocast("cpu"):
            result = layer(ONES)
            inside = nesting()
            caches = torch.is_autocast_cache_enabled()
        return result.dtype, before, inside, caches, nesting()

    with entered(AMBIENT[outer]):
        inline, carried = work(), carrying.submit(work).result()
    assert inline == carried


def test_region_opened_by_the_task_within_a_disabled_one_runs(carrying):
    """A layer used inline under float16 can be used by a task's own region: one dtype, not two."""
    lin = torch.nn.Linear(4, 4)

    def work():
        with torch.autocast("cpu"):
            return lin(ONES).dtype

    with torch.autocast("cpu", torch.float16):
        lin(ONES)
        with torch.autocast("cpu", enabled=False):
            inline, carried = work(), carrying.submit(work).result()
    assert inline == carried


def change_weight(lin):
    """Change the weight of a layer as an optimizer does."""
    with torch.no_grad():
        lin.weight.add_(1)


@pytest.mark.parametrize("caches", [True, False])
def test_weight_cache_is_used_as_inline(caches, carrying):
    """Within one carried region a changed weight is cast again only if the cache is off."""

    def work():
        lin = torch.nn.Linear(4, 4)
        first = lin(ONES)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pass  # leaving a nested region must not drop the cache
        change_weight(lin)
        return torch.equal(first, lin(ONES))

    with torch.autocast(*ON_CPU, cache_enabled=caches):
        inline, carried = work(), carrying.submit(work).result()
    assert caches == inline
    assert inline == carried


def test_weight_cache_is_dropped_when_a_task_leaves_the_outermost_region(worker):
    """A weight changed between two tasks of one snapshot is cast again by the second."""
    lin = torch.nn.Linear(4, 4)
    with torch.autocast(*ON_CPU):
        bound = ctxcarry.bind(lin)
        expected = [lin(ONES)]
    first = worker.submit(bound, ONES).result()
    change_weight(lin)
    second = worker.submit(bound, ONES).result()
    with torch.autocast(*ON_CPU):
        expected.append(lin(ONES))
    assert torch.equal(expected[0], first)
    assert torch.equal(expected[1], second)


def test_weight_cache_is_dropped_after_a_task_that_raised(worker):
    """The cache is dropped as well when the task that filled it raised."""
    lin = torch.nn.Linear(4, 4)

    def fail():
        lin(ONES)
        raise KeyError

    with torch.autocast(*ON_CPU):
        bound, failing = ctxcarry.bind(lin), ctxcarry.bind(fail)
    with pytest.raises(KeyError):
        worker.submit(failing).result()
    change_weight(lin)
    second = worker.submit(bound, ONES).result()
    with torch.autocast(*ON_CPU):
        expected = lin(ONES)
    assert torch.equal(expected, second)


def test_weight_cache_is_kept_within_a_region_of_the_worker(worker):
    """A snapshot activated inside the thread's own region leaves that region's depth alone."""
    with torch.autocast(*ON_CPU):
        snapshot = ctxcarry.capture()

    def work():
        lin = torch.nn.Linear(4, 4)
        with torch.autocast(*ON_CPU):
            first = lin(ONES)
            snapshot.run(int)
            change_weight(lin)
            return torch.equal(first, lin(ONES))

    assert worker.submit(work).result()


# Policies, and one snapshot over another


def test_suppressed_context_stays_the_workers(worker):
    """A suppressed context is neither captured nor applied."""
    with ctxcarry.suppress("torch.grad_mode"), torch.no_grad(), torch.autocast(*ON_CPU):
        bound = ctxcarry.bind(lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    assert (True, True) == worker.submit(bound).result()


@pytest.mark.parametrize(
    "ambient", ["no_grad", "inference_mode", "bfloat16", "several device types"]
)
def test_cleared_context_is_unset_in_the_worker(ambient, worker, state):
    """A cleared context is as in a new thread, whatever submitter and worker have set."""
    expected = state()
    with ctxcarry.policy(clear=TORCH), entered(AMBIENT[ambient]):
        bound = ctxcarry.bind(state)

    def work():
        with entered(AMBIENT[ambient]):
            return bound()

    actual = worker.submit(work).result()
    keys = {"grad", "inference", "autocast", "autocast nesting", "autocast cache"}
    assert {k: expected[k] for k in keys} == {k: actual[k] for k in keys}


def test_only_the_named_context_is_carried(worker):
    """capture(only=) carries that context and leaves the others as they are in the worker."""
    with torch.no_grad(), torch.autocast(*ON_CPU):
        snapshot = ctxcarry.capture(only="torch.autocast")
    found = worker.submit(
        snapshot.run, lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    )
    assert (True, True) == found.result()


def test_snapshot_over_a_base_takes_from_it_what_it_lacks(worker, state):
    """Each context is the snapshot's own where it has one, and the base's elsewhere."""
    with torch.inference_mode(), torch.autocast(*ON_CPU):
        base = ctxcarry.capture()
    with torch.autocast("cpu", torch.float16):
        over = ctxcarry.capture().over(base)
    actual = worker.submit(over.run, state).result()
    assert (True, False, torch.float16) == (
        actual["inference"],
        actual["grad"],
        actual["autocast dtypes"]["cpu"],
    )


def test_explain_tells_grad_mode_and_autocast():
    """Explain says in words what of torch was captured."""
    with torch.no_grad(), torch.autocast(*ON_CPU):
        text = ctxcarry.capture().explain()
    assert "torch.grad_mode: captured: disabled" in text
    assert "torch.inference_mode: not set" in text
    assert "torch.autocast: captured: cpu bfloat16; nesting 1; weight cache on" in text


# Coroutines


def holding(seen, held, released):
    """Return a coroutine function that holds no_grad while it waits to be released."""

    async def hold():
        with torch.no_grad():
            seen.append(torch.is_grad_enabled())
            held.set()
            await released.wait()
            seen.append(torch.is_grad_enabled())
        seen.append(torch.is_grad_enabled())

    return hold


async def observe(hold, held, released):
    """Return whether grad mode is on while the coroutine of `hold` waits."""
    task = asyncio.ensure_future(hold())
    await held.wait()
    seen = torch.is_grad_enabled()
    released.set()
    await task
    return seen


@pytest.mark.parametrize(("carried", "leaks"), [(False, True), (True, False)])
def test_no_grad_held_across_an_await_is_the_coroutines_own(carried, leaks):
    """Other coroutines do not see a no_grad that a carried one holds, as they do in plain torch."""
    seen = []

    async def main():
        held, released = asyncio.Event(), asyncio.Event()
        hold = holding(seen, held, released)
        return await observe(ctxcarry.carry_context(hold) if carried else hold, held, released)

    others = asyncio.run(main())
    assert leaks is not others
    assert [False, False, True] == seen


STEPPED = [
    "no_grad",
    "inference_mode",
    "enable_grad in inference_mode",
    "bfloat16",
    "off in autocast",
]


@pytest.mark.parametrize("ambient", STEPPED)
def test_carried_coroutines_interleave(ambient, state):
    """Two carried coroutines that take turns each find their own state after every await."""
    outside = state()

    @ctxcarry.carry_context
    async def hold(turns):
        found = []
        with entered(AMBIENT[ambient]):
            found.append(state())
            for _ in range(turns):
                await asyncio.sleep(0)
                found.append(state())
        await asyncio.sleep(0)
        return found, state()

    async def main():
        tasks = [asyncio.ensure_future(hold(n)) for n in (3, 1, 2)]
        between = []
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            between.append(state())
        return [task.result() for task in tasks], between

    results, between = asyncio.run(main())
    with entered(AMBIENT[ambient]):
        expected = state()
    assert [[expected] * 4, [expected] * 2, [expected] * 3] == [found for found, _ in results]
    assert [outside] * 3 == [after for _, after in results]
    assert [outside] * len(between) == between


@pytest.mark.parametrize("ambient", STEPPED)
def test_carried_coroutine_keeps_the_callers_state(ambient, state):
    """Each step of a coroutine is in the state that the caller had at the call."""

    @ctxcarry.carry_context
    async def work():
        found = [state()]
        await asyncio.sleep(0)
        return [*found, state()]

    async def main():
        with entered(AMBIENT[ambient]):
            expected, called = state(), work()
        return expected, await called

    expected, found = asyncio.run(main())
    assert [expected, expected] == found


def test_coroutine_that_is_cancelled_while_it_holds_inference_mode_leaves_none(state):
    """Cancelling a carried coroutine within inference mode leaves the loop's thread as it was."""
    outside = state()

    @ctxcarry.carry_context
    async def hold():
        with torch.inference_mode(), torch.autocast(*ON_CPU):
            await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        found = [state()]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        return [*found, state()]

    assert [outside, outside] == asyncio.run(main())


# Generators


def paused(ambient, state):
    """Return a carried generator that yields its state, twice within `ambient`, once after."""

    @ctxcarry.carry_context
    def generate():
        with entered(AMBIENT[ambient]):
            yield state()
            yield state()
        yield state()

    return generate()


@pytest.mark.parametrize("ambient", STEPPED)
def test_generator_paused_and_resumed_on_one_thread(ambient, state):
    """A block that a carried generator is paused in is there at the resume and not in between."""
    outside, found, between = state(), [], []
    for value in paused(ambient, state):
        found.append(value)
        between.append(state())
    with entered(AMBIENT[ambient]):
        inside = state()
    assert [inside, inside, outside] == found
    assert [outside] * 3 == between
    assert outside == state()


@pytest.mark.parametrize("ambient", STEPPED)
def test_generator_resumed_on_another_thread(ambient, state, worker):
    """A block that a generator was paused in is there when another thread resumes it."""
    outside = state()
    generator = paused(ambient, state)
    found = [next(generator)]

    def step():
        before = state()
        found.append(next(generator))
        return before == state()

    assert worker.submit(step).result()
    assert outside == state()
    found.append(next(generator))
    assert outside == state()
    with entered(AMBIENT[ambient]):
        inside = state()
    assert [inside, inside, outside] == found
    assert worker.submit(lambda: list(generator)).result() == []


class _Noted(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Passed(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


CONSUMERS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": autocast("cpu", torch.float16),
    "fake tensors": FakeTensorMode,
    "a dispatch mode": _Noted,
    "a function mode": _Passed,
    "no multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
    "a default device": lambda: torch.device("meta"),
    "no forward grad": lambda: forward_ad._set_fwd_grad_enabled(False),
    "keys below autograd": torch._C._AutoDispatchBelowAutograd,
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("ambient", STEPPED)
def test_consumer_keeps_what_it_entered_while_a_generator_was_paused(ambient, consumer, state):
    """A step of a paused generator does not undo what its consumer entered in the meantime."""
    outside = state()
    generator = paused(ambient, state)
    next(generator)
    with CONSUMERS[consumer]():
        before = state()
        made = type(torch.empty(2)), torch.empty(2).device.type
        next(generator)
        after = state()
        made_after = type(torch.empty(2)), torch.empty(2).device.type
    generator.close()
    assert made == made_after
    assert before == after
    assert outside == state()


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("ambient", STEPPED)
def test_consumer_on_another_thread_keeps_its_state(ambient, consumer, state, worker):
    """A generator paused elsewhere does not change the thread that resumes it."""
    generator = paused(ambient, state)
    next(generator)

    def step():
        with CONSUMERS[consumer]():
            before = state()
            made = type(torch.empty(2)), torch.empty(2).device.type
            next(generator)
            return before, state(), made, (type(torch.empty(2)), torch.empty(2).device.type)

    before, after, made, made_after = worker.submit(step).result()
    generator.close()
    assert made == made_after
    assert before == after


@pytest.mark.parametrize("hop", [False, True], ids=["same thread", "another thread"])
@pytest.mark.parametrize("ambient", ["no_grad", "inference_mode", "bfloat16"])
def test_function_transform_may_step_a_paused_generator(ambient, hop, state, worker):
    """The gradient of a function that steps a generator is right: the transform stays in force."""
    generator = paused(ambient, state)
    next(generator)

    def square(x):
        next(generator)
        return (x * x).sum()

    def work():
        return torch.func.grad(square)(torch.ones(2)).tolist()

    gradient = worker.submit(work).result() if hop else work()
    generator.close()
    assert [2.0, 2.0] == gradient


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_generator_paused_in_inference_mode_may_end_on_another_thread(consumer, end, state, worker):
    """Closing or dropping a generator that another thread paused leaves this thread as it was."""
    held = [paused("inference_mode", state)]
    next(held[0])

    def finish():
        with CONSUMERS[consumer]():
            before = state()
            if end == "close":
                held[0].close()
            held.clear()
            gc.collect()
            return before, state()

    before, after = worker.submit(finish).result()
    assert before == after


def test_generator_that_raises_within_inference_mode_leaves_the_thread_as_it_was(state):
    """An exception out of a carried generator ends its inference mode."""
    outside = state()

    @ctxcarry.carry_context
    def generate():
        with torch.inference_mode(), torch.autocast(*ON_CPU):
            yield
            raise KeyError

    generator = generate()
    next(generator)
    with pytest.raises(KeyError):
        next(generator)
    assert outside == state()


def test_async_generator_holds_its_state_across_yields(state):
    """An async generator's inference mode is its own at each of its steps."""
    outside = state()

    @ctxcarry.carry_context
    async def generate():
        with torch.inference_mode():
            for _ in range(2):
                yield torch.is_inference_mode_enabled()
                await asyncio.sleep(0)
        yield torch.is_inference_mode_enabled()

    async def main():
        return [(found, state()) async for found in generate()]

    assert [(True, outside), (True, outside), (False, outside)] == asyncio.run(main())


# Blocks that end elsewhere


def test_block_left_in_another_thread_changes_neither(state, worker):
    """Leaving an active() block in a wrong thread is an error that does not alter that thread."""
    with torch.inference_mode():
        snapshot = ctxcarry.capture()
    block = snapshot.active()
    block.__enter__()
    inside = state()
    held = [block]

    def leave():
        with FakeTensorMode():
            before = state()
            with pytest.raises(ctxcarry.LeakError):
                held[0].__exit__(None, None, None)
            return before, state()

    try:
        before, after = worker.submit(leave).result()
        assert before == after
        assert inside == state()
    finally:
        block.__exit__(None, None, None)


# A class


def test_methods_of_a_carried_class_see_what_its_init_saw(worker, state):
    """A method runs over the state in which its instance was made, on any thread."""

    @ctxcarry.carry_context
    class Model:
        def __init__(self):
            self.lin = torch.nn.Linear(4, 4)

        def call(self):
            return self.lin(ONES), state()

    with torch.no_grad(), torch.autocast(*ON_CPU):
        model = Model()
    here, there = model.call(), worker.submit(model.call).result()
    with torch.autocast("cpu", torch.float16):
        other = model.call()
    assert here[1] == there[1]
    assert (False, torch.bfloat16) == (there[0].requires_grad, there[0].dtype)
    assert (False, torch.float16) == (other[0].requires_grad, other[0].dtype)
