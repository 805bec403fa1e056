"""
The autograd engine: each backward pass takes along the context of whoever starts it.

The engine that Python sees is replaced by one of a derived class. Everything goes
through it: ``backward()``, ``grad()``, and code that asks the engine itself, as
Megatron-LM and FSDP do.
"""

from __future__ import annotations

import atexit
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.variable import Variable

from ctxcarry.boundaries import _autograd_tls as tls
from ctxcarry.boundaries._backward import Backward, Pass, current, put_current
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._dynamo import leave_to_interpreter
from ctxcarry.boundaries._under import under_backward

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry.boundaries._patch import Patch

__all__ = ("CarryingEngine", "boundary", "serve_hooks", "stop_serving_hooks", "under_way")

# At 60 passes one within the other the engine goes on on another thread, even where
# its threads are switched off; short of this many it does not.
_SHALLOW: Final = 30
_A_MOMENT: Final = 0.05  # seconds

under_way: Final[dict[int, int]] = {}
"""By thread: how many passes that were started there are under way, one within the other."""

_Engine: Any = type(Variable._execution_engine)
_threads_are_on: Callable[[], bool] = getattr(torch._C, "_is_multithreading_enabled", lambda: True)


class CarryingEngine(_Engine):  # type: ignore[misc]
    """Torch's engine, with the context of each pass stashed where its nodes find it."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass whose nodes find the context of this thread."""
        thread = get_ident()
        outer, depth, around = current.get(thread), under_way.get(thread, 0), tls.stashed()
        home = thread if depth == 0 and around is None else 0
        under_way[thread] = depth + 1
        try:
            if not (boundary.everything or boundary.decorated):
                return super().run_backward(*args, **kwargs)
            if around is None and depth < _SHALLOW and not _threads_are_on():
                # All its nodes run here.
                current[thread] = Pass(home)
                return super().run_backward(*args, **kwargs)
            return self._run_carried(thread, home, around, args, kwargs)
        finally:
            put_current(thread, outer)
            if depth:
                under_way[thread] = depth
            else:
                del under_way[thread]

    def _run_carried(
        self, thread: int, home: int, around: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        boundary.carried = True
        current[thread] = backward = Backward(home)
        if boundary.everything:  # else compiled backwards have nothing but torch's
            tls.take_torchs_context_away()
        tls.put(backward)
        try:
            return super().run_backward(*args, **kwargs)
        finally:
            tls.put(around)
            backward.end()

    def queue_callback(self, callback: Callable[[], object]) -> None:
        """Queue a callback for the end of this pass, to run in the context of the pass."""
        super().queue_callback(under_backward(callback))


leave_to_interpreter(CarryingEngine.run_backward)
leave_to_interpreter(CarryingEngine._run_carried)


class _EnginePatch:
    """The engine of ``Variable``, replaced and put back like a function."""

    def __init__(self) -> None:
        self._engine: Any = None

    def put_on(self) -> None:
        """Replace the engine, once."""
        engine = Variable._execution_engine
        if type(engine) is _Engine:
            self._engine = engine
            Variable._execution_engine = CarryingEngine()

    def take_off(self) -> None:
        """Put the engine back, unless somebody has put another one there."""
        if type(Variable._execution_engine) is CarryingEngine:
            Variable._execution_engine = self._engine


class _EngineBoundary(Boundary):
    """
    The engine, which `ctxcarry.autograd.hook` needs even where nothing is installed.

    Attributes:
        hooks: Whether there are hooks that are carried one by one.
        carried: Whether there has been a pass with a context.
    """

    hooks = False
    carried = False

    def use(self, *, decorated: bool, everything: bool) -> None:
        """Put the engine on where it is installed or a hook needs it."""
        super().use(decorated=decorated and self.hooks, everything=everything)


def serve_hooks() -> None:
    """Have backward passes take their context along for hooks that are carried one by one."""
    from ctxcarry.boundaries._install import serve_decorated  # noqa: PLC0415

    boundary.hooks = True
    serve_decorated()
    boundary.use(decorated=True, everything=boundary.everything)


def stop_serving_hooks() -> None:
    """Take back what `serve_hooks` did."""
    boundary.hooks = False
    boundary.use(decorated=False, everything=boundary.everything)


def _wait_for_engine() -> None:
    """
    Let the engine's threads let go of the last pass before the interpreter ends.

    They do so just after ``backward()`` has returned, and need the GIL for it. One
    that asks for the GIL once the interpreter has begun to end aborts the process.
    """
    if boundary.carried:
        time.sleep(_A_MOMENT)


atexit.register(_wait_for_engine)


def _patches() -> tuple[Patch, ...]:
    return (_EnginePatch(),)  # type: ignore[return-value]


boundary = _EngineBoundary(_patches, lacking=tls.lacking)
