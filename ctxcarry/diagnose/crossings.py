"""
How work crosses each boundary, in the plain way and carried.

A way (a `Cross`) sets a context where work is handed over, and reads it in the
worker before the work, by the work, and after it.
"""

# ruff: noqa: BLE001 - what a crossing raises is told in its cell

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.pool import ThreadPool
from typing import Any, Final, TypeAlias

import ctxcarry
from ctxcarry.diagnose.far import FarWorker
from ctxcarry.diagnose.far_ray import RayWorker
from ctxcarry.diagnose.probes import Read


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


def _as_it_is(work: Read) -> Read:
    return work


def try_within(
    handing: Handing, hand_over: Callable[[], object]
) -> tuple[object, Exception | None]:
    """Return what the work read, or None and what was raised; the worker is still to be read."""
    try:
        with handing():
            return hand_over(), None
    except Exception as error:
        return None, error


def plain_pool() -> ThreadPoolExecutor:
    """Return a pool of the standard library with one worker."""
    return ThreadPoolExecutor(max_workers=1)


def carrying_pool() -> ThreadPoolExecutor:
    """Return a pool of ctxcarry with one worker."""
    pool = ctxcarry.executor(max_workers=1)
    assert isinstance(pool, ThreadPoolExecutor)
    return pool


def _submit(pool: ThreadPoolExecutor, work: Read) -> Future[object]:
    return pool.submit(work)


def _bare(pool: ThreadPoolExecutor, read: Read) -> object:
    """Read in the worker by the method of the standard library, whatever is patched on top."""
    future: Future[object] = inspect.unwrap(ThreadPoolExecutor.submit)(pool, read)
    return future.result()


def over_pool(
    pool_of: Callable[[], ThreadPoolExecutor] = plain_pool,
    submit: Callable[[ThreadPoolExecutor, Read], Future[object]] = _submit,
    prepare: Callable[[Read], Read] = _as_it_is,
) -> Cross:
    """Cross to the one worker of a pool, which waits there before the context is set."""

    def cross(read: Read, handing: Handing) -> Crossing:
        work = prepare(read)
        with pool_of() as pool:
            before = _bare(pool, read)
            inside, failure = try_within(handing, lambda: submit(pool, work).result())
            return Crossing(before, inside, _bare(pool, read), failure)

    return cross


def over_bound_thread(prepare: Callable[[Read], Read] = _as_it_is) -> Cross:
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


def over_thread(thread_of: Callable[[Callable[[], None]], threading.Thread]) -> Cross:
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
        inside, failure = try_within(handing, lambda: run_in(thread_of, read))
        return Crossing(before, inside, run_in(plain, read), failure)

    return cross


def over_thread_pool(read: Read, handing: Handing) -> Crossing:
    """Cross to the one worker of a pool of ``multiprocessing``."""
    bare = inspect.unwrap(ThreadPool.apply_async)
    with ThreadPool(1) as pool:
        before = bare(pool, read).get()
        inside, failure = try_within(handing, lambda: pool.apply(read))
        after = bare(pool, read).get()
        pool.close()
        pool.join()
    return Crossing(before, inside, after, failure)


def over_loop(hand_over: Callable[[Read], Any]) -> Cross:
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
            with plain_pool() as pool:
                loop.set_default_executor(pool)
                return loop.run_until_complete(main(pool))
        finally:
            loop.close()

    return cross


def over_torch_future(read: Read, handing: Handing) -> Crossing:
    """Cross to the thread that completes a ``torch.futures.Future``."""
    future = import_module("torch.futures").Future()
    with plain_pool() as pool:
        before = _bare(pool, read)

        def hand_over() -> object:
            seen = future.then(lambda _: read())
            _bare(pool, lambda: future.set_result(None))
            return seen.wait()

        inside, failure = try_within(handing, hand_over)
        return Crossing(before, inside, _bare(pool, read), failure)


def over_joblib(read: Read, handing: Handing) -> Crossing:
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
        inside, failure = try_within(handing, lambda: dict(parallel(calls())))
        after = dict(bare(parallel, calls()))
    worker = next(iter(before))
    found = inside.get(worker) if isinstance(inside, dict) else None
    return Crossing(before[worker], found, after.get(worker), failure)


def installed(name: str, cross: Cross) -> Cross:
    """Return `cross` with the boundary `name` installed."""

    def cross_installed(read: Read, handing: Handing) -> Crossing:
        ctxcarry.install(name)
        try:
            return cross(read, handing)
        finally:
            ctxcarry.uninstall(name)

    return cross_installed


FAR: Final = FarWorker()
"""The other process, one for all crossings."""

FAR_RAY: Final = RayWorker()
"""The actor of Ray, likewise."""


def by_worker(worker: FarWorker | RayWorker, hand_over: Callable[[Read], object]) -> Cross:
    """Cross to the one process that all crossings share."""

    def cross(read: Read, handing: Handing) -> Crossing:
        before = worker.plain(read)
        inside, failure = try_within(handing, lambda: hand_over(read))
        return Crossing(before, inside, worker.plain(read), failure)

    return cross
