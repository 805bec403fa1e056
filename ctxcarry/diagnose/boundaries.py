"""
The boundaries that ``doctor`` crosses, each in the plain way and carried.

To have ``doctor`` show one more, write how work crosses it (a `Cross`) for both
ways and add a `Boundary` to `BOUNDARIES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeAlias

import ctxcarry
from ctxcarry.boundaries import _install
from ctxcarry.diagnose.probes import Read

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("BOUNDARIES", "Boundary", "Cross", "Crossing", "as_found")


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
    """

    name: str
    plain: Cross
    carried: Cross
    plain_code: str
    carried_code: str


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


def _plain_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def _carrying_pool() -> ThreadPoolExecutor:
    pool = ctxcarry.executor(max_workers=1)
    assert isinstance(pool, ThreadPoolExecutor)
    return pool


def _as_it_is(work: Read) -> Read:
    return work


def _submit(pool: ThreadPoolExecutor, work: Read) -> Future[object]:
    return pool.submit(work)


def _over_pool(
    pool_of: Callable[[], ThreadPoolExecutor] = _plain_pool,
    submit: Callable[[ThreadPoolExecutor, Read], Future[object]] = _submit,
    prepare: Callable[[Read], Read] = _as_it_is,
) -> Cross:
    """Cross to the one worker of a pool, which waits there before the context is set."""

    def cross(read: Read, handing: Handing) -> Crossing:
        # The method of the standard library, whatever carries or is patched on top.
        bare = inspect.unwrap(ThreadPoolExecutor.submit)
        work = prepare(read)
        with pool_of() as pool:
            before = bare(pool, read).result()
            inside, failure = None, None
            try:
                with handing():
                    inside = submit(pool, work).result()
            except Exception as error:  # noqa: BLE001 - told in the cell; the worker is still read
                failure = error
            return Crossing(before, inside, bare(pool, read).result(), failure)

    return cross


def _over_thread(prepare: Callable[[Read], Read] = _as_it_is) -> Cross:
    """Cross to a thread that is started with the work."""

    def cross(read: Read, handing: Handing) -> Crossing:
        seen: Future[Crossing] = Future()

        def run(work: Read) -> None:
            try:
                before = read()
                inside, failure = None, None
                try:
                    inside = work()
                except Exception as error:  # noqa: BLE001 - told in the cell; the thread is still read
                    failure = error
                seen.set_result(Crossing(before, inside, read(), failure))
            except BaseException as error:  # noqa: BLE001 - raised where the thread was started
                seen.set_exception(error)

        with handing():
            thread = Thread(target=run, args=(prepare(read),))
            thread.start()
            thread.join()
        return seen.result()

    return cross


def _installed(cross: Cross) -> Cross:
    def cross_installed(read: Read, handing: Handing) -> Crossing:
        ctxcarry.install("executor")
        try:
            return cross(read, handing)
        finally:
            ctxcarry.uninstall("executor")

    return cross_installed


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
        _over_thread(),
        _over_thread(ctxcarry.bind),
        "Thread(target=fn)",
        "Thread(target=ctxcarry.bind(fn))",
    ),
    Boundary(
        "carry_context",
        _over_pool(),
        _over_pool(prepare=ctxcarry.carry_context),
        "pool.submit(fn)",
        "fn under @ctxcarry.carry_context",
    ),
    Boundary(
        "install",
        _over_pool(),
        _installed(_over_pool()),
        "pool.submit(fn)",
        'after ctxcarry.install("executor")',
    ),
)
