"""Step coroutines and generators under a snapshot: active at each resume, gone at each pause."""

from __future__ import annotations

import threading
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from ctxcarry._activate import apply_all
from ctxcarry._undo import undo_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from contextvars import Context

    from ctxcarry._plan import Plan
    from ctxcarry._snapshot import Snapshot
    from ctxcarry._undo import Undo

__all__ = ("STEPPED", "Stepper", "made_by", "stepped")

STEPPED = frozenset({AsyncGeneratorType, CoroutineType, GeneratorType})

# inspect.iscoroutinefunction and its like say the same, but inspect takes
# longer to import than all of this package.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200
_BODY_RUNS_LATER = _GENERATOR | _COROUTINE | _ITERABLE_COROUTINE | _ASYNC_GENERATOR


class Stepper:
    """
    The ambient state of one coroutine or generator, kept while it is paused.

    It starts as the snapshot. What the body changes across a pause (a
    ``no_grad`` block around an ``await``) is its own: it is there again at the
    next resume, on whichever thread that is, and not there in between.
    """

    __slots__ = ("_context", "_parked", "_plan", "_states", "_thread")

    def __init__(self, snapshot: Snapshot) -> None:
        self._plan: Plan = snapshot._plan
        self._states: tuple[object, ...] = snapshot._states
        self._context: Context | None = snapshot._context_to_enter()
        self._parked: list[Undo] = []
        self._thread = 0

    def step(self, advance: Callable[..., Any], *args: object) -> Any:
        """Call ``advance(*args)``, one step of the body, under the state kept here."""
        if self._context is None:
            return self._step(advance, args)
        return self._context.run(self._step, advance, args)

    def _step(self, advance: Callable[..., Any], args: tuple[object, ...]) -> Any:
        plan = self._plan
        outside = plan.here()
        if self._parked and self._thread == threading.get_ident():
            undo_all(self._parked)
        self._parked = []
        applied = apply_all(plan, self._states)
        try:
            result = advance(*args)
        except (StopIteration, StopAsyncIteration):  # how a body says that it has finished
            self._pause(applied, outside, None)
            raise
        except BaseException as error:
            self._pause(applied, outside, error)
            raise
        self._pause(applied, outside, None)
        return result

    def _pause(
        self,
        applied: list[Undo],
        outside: tuple[object, ...],
        error: BaseException | None,
    ) -> None:
        self._states = self._plan.here()
        undo_all(applied, error)
        # What the body itself left changed is not undone by that. Setting it
        # back gives tokens, whose undo brings the body's own state back.
        self._thread = threading.get_ident()
        self._parked = apply_all(self._plan, outside)


class _Steps:
    """An awaitable that passes each step of another one through a stepper."""

    __slots__ = ("_stepper", "_target")

    def __init__(self, stepper: Stepper, target: Any) -> None:
        self._stepper = stepper
        self._target = target

    def __await__(self) -> _Steps:
        return self

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: object) -> Any:
        return self._stepper.step(self._target.send, value)

    def throw(self, *exc_info: Any) -> Any:
        return self._stepper.step(self._target.throw, *exc_info)

    def close(self) -> None:
        self._stepper.step(self._target.close)


async def _coroutine(stepper: Stepper, inner: Coroutine[Any, Any, Any]) -> Any:
    return await _Steps(stepper, inner)


def _generator(stepper: Stepper, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        value = stepper.step(inner.send, None)
        while True:
            try:
                sent = yield value
            except GeneratorExit:
                stepper.step(inner.close)
                raise
            except BaseException as error:  # noqa: BLE001 - belongs to the body, as in `yield from`
                value = stepper.step(inner.throw, error)
            else:
                value = stepper.step(inner.send, sent)
    except StopIteration as stop:
        return stop.value


async def _async_generator(
    stepper: Stepper, inner: AsyncGenerator[Any, Any]
) -> AsyncGenerator[Any, Any]:
    try:
        value = await _Steps(stepper, inner.asend(None))
        while True:
            try:
                sent = yield value
            except GeneratorExit:
                await _Steps(stepper, inner.aclose())
                raise
            except BaseException as error:  # noqa: BLE001 - belongs to the body
                value = await _Steps(stepper, inner.athrow(error))
            else:
                value = await _Steps(stepper, inner.asend(sent))
    except StopAsyncIteration:
        return


_SHELLS: dict[type, Callable[..., Any]] = {
    AsyncGeneratorType: _async_generator,
    CoroutineType: _coroutine,
    GeneratorType: _generator,
}


def stepped(snapshot: Snapshot, inner: Any) -> Any:
    """Return a coroutine or generator that runs `inner` under `snapshot` at each step."""
    shell = _SHELLS[type(inner)](Stepper(snapshot), inner)
    shell.__name__ = inner.__name__
    shell.__qualname__ = inner.__qualname__
    return shell


def made_by(fn: Callable[..., Any]) -> bool:
    """
    Say whether `fn` is a coroutine, generator or async generator function.

    Calling one only creates the object; its body runs wherever that is iterated.
    """
    while isinstance(fn, partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None:
        code = getattr(getattr(type(fn), "__call__", None), "__code__", None)  # noqa: B004
    return code is not None and bool(code.co_flags & _BODY_RUNS_LATER)
