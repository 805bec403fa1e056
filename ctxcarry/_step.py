"""Step coroutines and generators under a snapshot: active at each resume, gone at each pause."""

from __future__ import annotations

import sys
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType, coroutine
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING
from ctxcarry._contexts import HERE, InPlace, overlaid, value_here
from ctxcarry._policy import UNCHANGED_BY_POLICY
from ctxcarry._undo import failed, undo_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from contextvars import Context

    from ctxcarry._snapshot import Snapshot
    from ctxcarry._undo import Undo

__all__ = ("STEPPED", "Stepper", "made_by", "stepped", "stepped_coroutine")

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

    __slots__ = ("_begun", "_context", "_edits", "_inside", "_swaps")

    def __init__(self, snapshot: Snapshot) -> None:
        plan = snapshot._plan
        self._swaps = plan.swaps()
        self._inside: list[Any] = list(snapshot._states)
        self._begun = False
        # Where the ContextVars are not carried, those of each step are its caller's.
        carried = plan.contexts != UNCHANGED_BY_POLICY
        self._context: Context | None = snapshot._context_to_enter() if carried else None
        self._edits = {v: value for v, value in snapshot._edits if carried is (value is HERE)}

    def step(self, advance: Callable[..., Any], *args: object) -> Any:
        """
        Call ``advance(*args)``, one step of the body, under the state kept here.

        Raises:
            CarrierError: If a context cannot be made current; the body has not
                been stepped.
            ExceptionGroup: If the body's step ended and a context of the thread
                cannot be brought back.
        """
        try:
            if self._context is not None:
                if self._edits:
                    self._context = overlaid(self._context, self._edits.items())
                return self._context.run(self._step, advance, args)
            if not self._edits:
                return self._step(advance, args)
            return self._step_in_place(advance, args)
        except BaseException:
            del self, advance, args  # the traceback keeps this frame
            raise

    def _step_in_place(self, advance: Callable[..., Any], args: tuple[object, ...]) -> Any:
        """Make a step in the caller's own Context, with some of its variables as kept here."""
        variables = InPlace()
        for variable, value in self._edits.items():
            if value is MISSING:
                variables.unset(variable)
            else:
                variables.set(variable, value)
        try:
            return self._step(advance, args)
        finally:
            self._edits = {v: value_here(v) for v in self._edits}
            variables.take_back()

    def _step(self, advance: Callable[..., Any], args: tuple[object, ...]) -> Any:
        outside = self._enter()
        try:
            result = advance(*args)
        except (StopIteration, StopAsyncIteration):  # how a body says that it has finished
            undo_all(outside)
            raise
        except BaseException as error:
            undo_all(outside, error)
            # The body has ended, and the traceback keeps the frames around it.
            self._inside, self._context, self._edits, self._swaps = [], None, {}, ()
            del self, advance, args, outside
            raise
        undo_all(outside)
        return result

    def _enter(self) -> list[Undo]:
        """Make the body's state current; return what brings the outside back."""
        outside: list[Undo] = []
        for i, swap in enumerate(self._swaps):
            enter = swap.resume if self._begun else swap.begin
            try:
                former = enter(self._inside[i])
            except Exception as cause:
                error = failed(swap.name, "apply", cause)
                undo_all(outside, error)
                raise error from cause
            outside.append((self._pausing(i), former, swap.name))
        self._begun = True
        return outside

    def _pausing(self, i: int) -> Callable[[Any], None]:
        def pause(outside: Any) -> None:
            self._inside[i] = self._swaps[i].pause(outside)

        return pause


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


class _Unstarted:
    """
    A coroutine that its shell has not started yet.

    When the shell is dropped or thrown into before that, Python says of the
    shell that it was never awaited, and need not say it of the inner one too.
    """

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner: Coroutine[Any, Any, Any] | None = inner

    def start(self) -> Coroutine[Any, Any, Any]:
        inner, self._inner = self._inner, None
        assert inner is not None
        return inner

    def discard(self) -> None:
        """Close the inner coroutine, if it has not been started."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    def __del__(self) -> None:
        self.discard()


async def _coroutine(stepper: Stepper, unstarted: _Unstarted) -> Any:
    return await _Steps(stepper, unstarted.start())


def _generator(stepper: Stepper, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        value = stepper.step(inner.send, None)
        while True:
            try:
                sent = yield value
            except GeneratorExit:
                returned = stepper.step(inner.close)
                if returned is not None:  # which `close` hands on since Python 3.13
                    return returned
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
    # The loop closes what it has seen begin, and is to see this shell only.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        first = inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
    try:
        value = await _Steps(stepper, first)
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


_generator_based_coroutine = coroutine(_generator)


def stepped_coroutine(
    snapshot: Snapshot, inner: Coroutine[Any, Any, Any]
) -> tuple[Coroutine[Any, Any, Any], Callable[[], None]]:
    """
    Return a coroutine that runs `inner` under `snapshot` at each step.

    And what closes `inner` where that one ends before it has begun. (The
    collector might finalise `inner` first, which would then complain.)
    """
    unstarted = _Unstarted(inner)
    shell: Any = _coroutine(Stepper(snapshot), unstarted)
    shell.__name__ = getattr(inner, "__name__", shell.__name__)
    shell.__qualname__ = getattr(inner, "__qualname__", shell.__qualname__)
    return shell, unstarted.discard


def stepped(snapshot: Snapshot, inner: Any) -> Any:
    """Return a coroutine or generator that runs `inner` under `snapshot` at each step."""
    if not isinstance(inner, (AsyncGeneratorType, GeneratorType)):
        return stepped_coroutine(snapshot, inner)[0]
    stepper = Stepper(snapshot)
    shell: Any
    if isinstance(inner, AsyncGeneratorType):
        shell = _async_generator(stepper, inner)
    elif inner.gi_code.co_flags & _ITERABLE_COROUTINE:
        shell = _generator_based_coroutine(stepper, inner)
    else:
        shell = _generator(stepper, inner)
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
