"""asyncio: `to_thread`, `run_in_executor`, and tasks whose thread state is their own."""

from __future__ import annotations

import asyncio
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._step import stepped_coroutine
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ("boundary", "run_in_executor", "to_thread")


async def to_thread(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Run `fn` in a thread of the default executor, in the context of the caller.

    As ``asyncio.to_thread``, which carries ContextVars only.

    Returns:
        What `fn` returns.
    """
    loop = asyncio.get_running_loop()
    bound = registry.capture().wrap(fn)
    return await loop.run_in_executor(None, partial(bound, *args, **kwargs))


def run_in_executor(
    executor: Executor | None, fn: Callable[..., T], /, *args: Any
) -> asyncio.Future[T]:
    """
    Run `fn` in `executor`, in the context of the caller.

    As ``loop.run_in_executor`` of the running loop, which carries nothing.

    Args:
        executor: A pool of threads; the loop's default one for None.
        fn: A callable.
        *args: Its arguments.

    Returns:
        A future to be awaited.
    """
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(executor, registry.capture().wrap(fn), *args)


def _run_in_executor(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_in_executor(self: Any, executor: Any, func: Any, *args: Any) -> Any:
        return original(self, executor, boundary.bound(func), *args)

    return run_in_executor


def _to_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    async def to_thread(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await original(boundary.bound(func), *args, **kwargs)

    return to_thread


def _create_task(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_task(self: Any, coro: Any, **kwargs: Any) -> Any:
        # The task copies the ContextVars itself; what it lacks is that the state
        # of the thread is the task's own between one `await` and the next.
        plan = registry.plan(variables=False)
        # The closing of an async generator that the loop finalises is one too.
        if (
            not boundary.everything
            or plan.empty
            or not asyncio.iscoroutine(coro)
            or isinstance(coro, GeneratorType)
        ):
            return original(self, coro, **kwargs)
        shell, discard = stepped_coroutine(capture_with(plan), coro)
        try:
            task = original(self, shell, **kwargs)
        except BaseException:
            shell.close()
            raise
        task.add_done_callback(lambda _: discard())
        return task

    return create_task


def _patches() -> tuple[Patch, ...]:
    loop = asyncio.BaseEventLoop
    return (
        Patch(loop, "run_in_executor", _run_in_executor),
        Patch(loop, "create_task", _create_task),
        Patch(asyncio, "to_thread", _to_thread),
        Patch(asyncio.threads, "to_thread", _to_thread),
    )


boundary = Boundary(_patches)
