"""
The boundaries that ``doctor`` crosses, each in the plain way and carried.

To have ``doctor`` show one more, write how work crosses it (a `Cross`) for both
ways and add a `Boundary` to `BOUNDARIES`.
"""

# ruff: noqa: BLE001 - what a crossing raises is told in its cell

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import ctxcarry
from ctxcarry.boundaries import _install
from ctxcarry.diagnose.far import FarWorker
from ctxcarry.diagnose.probes import Read

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("BOUNDARIES", "Boundary", "Cross", "Crossing", "as_found", "is_here")


@dataclass(frozen=True)
class Crossing:
    """
    What was read on the far side of a boundary.

    Attributes:
        before: In the worker, before the work came.
        inside: By the work.
        after: In the same worker, after the work.
        error: What handing over or the work raised; then `inside` says nothing.
    """

    before: object
    inside: object
    after: object
    error: Exception | None = None


Handing: TypeAlias = Callable[[], AbstractContextManager[object]]
Cross: TypeAlias = Callable[[Read, Handing], Crossing]
"""Called with what the work reads, and with what to enter while it is handed over and runs."""


@dataclass(frozen=True)
class Boundary:
    """
    A place where work moves.

    Attributes:
        name: The name that the table gives it.
        plain: Crosses it as the standard library or the framework does.
        carried: Crosses it with ctxcarry.
        plain_code: The plain way, in a few words of code.
        carried_code: The carried way.
        needs: The package without which there is no such boundary.
        far: Whether the work moves to another process.
        opened: Entered around all crossings.
    """

    name: str
    plain: Cross
    carried: Cross
    plain_code: str
    carried_code: str
    needs: str | None = None
    far: bool = False
    opened: Callable[[], AbstractContextManager[object]] = nullcontext


def is_here(boundary: Boundary) -> bool:
    """Say whether what `boundary` needs is installed."""
    if boundary.needs is None:
        return True
    try:
        return find_spec(boundary.needs) is not None
    except ValueError:  # the module was made unimportable
        return False


@contextmanager
def as_found() -> Iterator[None]:
    """Take all instrumentation off for the time being: the plain way must be plain."""
    installed, decorated = ctxcarry.installed(), _install._decorated
    if installed:
        ctxcarry.uninstall(*installed)
    try:
        yield
    finally:
        if not decorated:
            # All of it, what @carry_context put on for a probe included.
            ctxcarry.uninstall()
        if installed:
            ctxcarry.install(*installed)


def _as_it_is(work: Read) -> Read:
    return work


def _inside(handing: Handing, hand_over: Callable[[], object]) -> tuple[object, Exception | None]:
    """Return what the work read, or None and what was raised; the worker is still to be read."""
    try:
        with handing():
            return hand_over(), None
    except Exception as error:
        return None, error


def _plain_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def _carrying_pool() -> ThreadPoolExecutor:
    pool = ctxcarry.executor(max_workers=1)
    assert isinstance(pool, ThreadPoolExecutor)
    return pool


def _submit(pool: ThreadPoolExecutor, work: Read) -> Future[object]:
    return pool.submit(work)


def _bare(pool: ThreadPoolExecutor, read: Read) -> object:
    """Read in the worker by the method of the standard library, whatever is patched on top."""
    future: Future[object] = inspect.unwrap(ThreadPoolExecutor.submit)(pool, read)
    return future.result()


def _over_pool(
    pool_of: Callable[[], ThreadPoolExecutor] = _plain_pool,
    submit: Callable[[ThreadPoolExecutor, Read], Future[object]] = _submit,
    prepare: Callable[[Read], Read] = _as_it_is,
) -> Cross:
    """Cross to the one worker of a pool, which waits there before the context is set."""

    def cross(read: Read, handing: Handing) -> Crossing:
        work = prepare(read)
        with pool_of() as pool:
            before = _bare(pool, read)
            inside, failure = _inside(handing, lambda: submit(pool, work).result())
            return Crossing(before, inside, _bare(pool, read), failure)

    return cross


def _over_bound_thread(prepare: Callable[[Read], Read] = _as_it_is) -> Cross:
    """Cross to a thread that is started with a function that calls the work."""

    def cross(read: Read, handing: Handing) -> Crossing:
        seen: Future[Crossing] = Future()

        def run(work: Read) -> None:
            try:
                before = read()
                inside, failure = None, None
                try:
                    inside = work()
                except Exception as error:
                    failure = error
                seen.set_result(Crossing(before, inside, read(), failure))
            except BaseException as error:
                seen.set_exception(error)

        with handing():
            thread = threading.Thread(target=run, args=(prepare(read),))
            thread.start()
            thread.join()
        return seen.result()

    return cross


def _over_thread(thread_of: Callable[[Callable[[], None]], threading.Thread]) -> Cross:
    """Cross to a thread that lives for the work; read before and after in threads of their own."""

    def run_in(make: Callable[[Callable[[], None]], threading.Thread], read: Read) -> object:
        seen: Future[object] = Future()

        def run() -> None:
            try:
                seen.set_result(read())
            except BaseException as error:
                seen.set_exception(error)

        def fail(ended: threading.ExceptHookArgs) -> None:
            seen.set_exception(ended.exc_value or RuntimeError("the thread failed"))

        thread = make(run)
        # What fails before the work is called has nobody else to tell.
        hook, threading.excepthook = threading.excepthook, fail
        try:
            thread.start()
            thread.join()
        finally:
            threading.excepthook = hook
        return seen.result(timeout=0)

    def plain(run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run)

    def cross(read: Read, handing: Handing) -> Crossing:
        before = run_in(plain, read)
        inside, failure = _inside(handing, lambda: run_in(thread_of, read))
        return Crossing(before, inside, run_in(plain, read), failure)

    return cross


def _over_thread_pool(read: Read, handing: Handing) -> Crossing:
    """Cross to the one worker of a pool of ``multiprocessing``."""
    bare = inspect.unwrap(ThreadPool.apply_async)
    with ThreadPool(1) as pool:
        before = bare(pool, read).get()
        inside, failure = _inside(handing, lambda: pool.apply(read))
        after = bare(pool, read).get()
        pool.close()
        pool.join()
    return Crossing(before, inside, after, failure)


def _over_loop(hand_over: Callable[[Read], Any]) -> Cross:
    """Cross from a coroutine to the one worker of the loop's default executor."""

    def cross(read: Read, handing: Handing) -> Crossing:
        async def main(pool: ThreadPoolExecutor) -> Crossing:
            before = _bare(pool, read)
            inside, failure = None, None
            try:
                with handing():
                    inside = await hand_over(read)
            except Exception as error:
                failure = error
            return Crossing(before, inside, _bare(pool, read), failure)

        # Not asyncio.run, after which the thread has no loop at all.
        loop = asyncio.new_event_loop()
        try:
            with _plain_pool() as pool:
                loop.set_default_executor(pool)
                return loop.run_until_complete(main(pool))
        finally:
            loop.close()

    return cross


def _over_torch_future(read: Read, handing: Handing) -> Crossing:
    """Cross to the thread that completes a ``torch.futures.Future``."""
    future = import_module("torch.futures").Future()
    with _plain_pool() as pool:
        before = _bare(pool, read)

        def hand_over() -> object:
            seen = future.then(lambda _: read())
            _bare(pool, lambda: future.set_result(None))
            return seen.wait()

        inside, failure = _inside(handing, hand_over)
        return Crossing(before, inside, _bare(pool, read), failure)


def _over_joblib(read: Read, handing: Handing) -> Crossing:
    """Cross to the two workers of joblib's threading backend, and look at one that is not us."""
    joblib: Any = import_module("joblib")
    # With both at work at once, neither can take the part of the other.
    both = threading.Barrier(2, timeout=10)

    def seen() -> tuple[int, object]:
        both.wait()
        return threading.get_ident(), read()

    def calls() -> list[Any]:
        return [joblib.delayed(seen)() for _ in range(2)]

    bare = inspect.unwrap(joblib.Parallel.__call__)
    with joblib.Parallel(n_jobs=2, backend="threading", batch_size=1) as parallel:
        before = dict(bare(parallel, calls()))
        inside, failure = _inside(handing, lambda: dict(parallel(calls())))
        after = dict(bare(parallel, calls()))
    worker = next(iter(before))
    found = inside.get(worker) if isinstance(inside, dict) else None
    return Crossing(before[worker], found, after.get(worker), failure)


def _installed(name: str, cross: Cross) -> Cross:
    def cross_installed(read: Read, handing: Handing) -> Crossing:
        ctxcarry.install(name)
        try:
            return cross(read, handing)
        finally:
            ctxcarry.uninstall(name)

    return cross_installed


def _by_worker(hand_over: Callable[[Read], object]) -> Cross:
    """Cross to the one process that all crossings share."""

    def cross(read: Read, handing: Handing) -> Crossing:
        before = _far.plain(read)
        inside, failure = _inside(handing, lambda: hand_over(read))
        return Crossing(before, inside, _far.plain(read), failure)

    return cross


_far: Final = FarWorker()

BOUNDARIES: Final = (
    Boundary(
        "executor",
        _over_pool(),
        _over_pool(_carrying_pool),
        "ThreadPoolExecutor()",
        "ctxcarry.executor()",
    ),
    Boundary(
        "wrap_executor",
        _over_pool(),
        _over_pool(submit=lambda pool, work: ctxcarry.wrap_executor(pool).submit(work)),
        "ThreadPoolExecutor()",
        "ctxcarry.wrap_executor(pool)",
    ),
    Boundary(
        "bind",
        _over_bound_thread(),
        _over_bound_thread(ctxcarry.bind),
        "Thread(target=fn)",
        "Thread(target=ctxcarry.bind(fn))",
    ),
    Boundary(
        "carry_context",
        _over_pool(),
        _over_pool(prepare=ctxcarry.carry_context),
        "pool.submit(fn)",
        "@ctxcarry.carry_context",
    ),
    Boundary(
        "install",
        _over_pool(),
        _installed("executor", _over_pool()),
        "pool.submit(fn)",
        'ctxcarry.install("executor")',
    ),
    Boundary(
        "Thread",
        _over_thread(lambda run: threading.Thread(target=run)),
        _over_thread(lambda run: ctxcarry.Thread(target=run)),
        "threading.Thread(target=fn)",
        "ctxcarry.Thread(target=fn)",
    ),
    Boundary(
        "Timer",
        _over_thread(lambda run: threading.Timer(0, run)),
        _over_thread(lambda run: ctxcarry.Timer(0, run)),
        "threading.Timer(0, fn)",
        "ctxcarry.Timer(0, fn)",
    ),
    Boundary(
        "thread_pool",
        _over_thread_pool,
        _installed("thread_pool", _over_thread_pool),
        "ThreadPool().apply(fn)",
        'ctxcarry.install("thread_pool")',
    ),
    Boundary(
        "asyncio",
        _over_loop(lambda work: asyncio.get_running_loop().run_in_executor(None, work)),
        _over_loop(lambda work: ctxcarry.run_in_executor(None, work)),
        "loop.run_in_executor(...)",
        "ctxcarry.run_in_executor(...)",
    ),
    Boundary(
        "to_thread",
        _over_loop(asyncio.to_thread),
        _over_loop(ctxcarry.to_thread),
        "asyncio.to_thread(fn)",
        "ctxcarry.to_thread(fn)",
    ),
    Boundary(
        "process",
        _by_worker(_far.plain),
        _by_worker(_far.carried),
        "ProcessPoolExecutor()",
        'ctxcarry.executor(kind="process")',
        far=True,
        opened=_far.opened,
    ),
    Boundary(
        "joblib",
        _over_joblib,
        _installed("joblib", _over_joblib),
        "joblib threading backend",
        'ctxcarry.install("joblib")',
        needs="joblib",
    ),
    Boundary(
        "torch.futures",
        _over_torch_future,
        _installed("torch.futures", _over_torch_future),
        "Future.then(fn)",
        'ctxcarry.install("torch.futures")',
        needs="torch",
    ),
)
