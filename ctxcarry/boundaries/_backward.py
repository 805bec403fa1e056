"""One backward pass, and the context of whoever started it, for what runs on other threads."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ctxcarry._activate import call_under
from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._policy import Policy
from ctxcarry._states import is_set

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from ctxcarry._plan import Plan
    from ctxcarry._snapshot import Snapshot

__all__ = ("ENGINES_OWN", "Backward", "capture_for_engine", "current", "put_current")

ENGINES_OWN: Final = Policy(
    unchanged=(
        "torch.grad_mode",
        "torch.inference_mode",
        "torch.autocast",
        "torch.dispatch_modes",
        "torch.saved_tensors_hooks",
        "torch.multithreading",
        "torch.cuda_device",
        "torch.cuda_stream",
    )
)
"""What the autograd engine sets for each node itself, and a checkpoint for its recompute."""


def capture_for_engine(policy: Policy | None = None, *, everywhere: bool = False) -> Snapshot:
    """Return a snapshot of this thread without what is the engine's own."""
    policy = ENGINES_OWN if policy is None else ENGINES_OWN.within(policy)
    return capture_with(registry.plan(policy, everywhere=everywhere))


current: Final[dict[int, Backward]] = {}
"""
By thread: the pass whose context the thread has now, as it was started there or one
of its nodes runs there.

Not a ``threading.local``: some threads of the engine have a new Python state for
each node, for which making one would cost more than all else that is done here.
"""


class _Lean(NamedTuple):
    """What a thread that has nothing of its own needs to run the nodes of a pass."""

    context: Context | None
    plan: Plan | None
    states: tuple[object, ...]


class Backward:
    """
    One call of ``backward()`` or ``grad()``.

    Its nodes run on the thread that called it, which has its context, or on threads
    of the engine, where `call` activates it.
    """

    __slots__ = ("__weakref__", "_leans", "_snapshot")

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = capture_for_engine()
        self._leans: dict[int, _Lean] = {}

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``fn(*args)`` on a thread of the engine, in the context of this pass."""
        snapshot, thread = self._snapshot, get_ident()
        if snapshot is None:  # it failed on another thread, and is over
            return fn(*args)
        outer = current.get(thread)
        current[thread] = self
        try:
            if outer is not None:
                # In the midst of another pass: whatever that one has set is in the way.
                return snapshot.run(fn, *args)
            context, plan, states = self._leans.get(thread) or self._lean_here(snapshot)
            if plan is None:
                return fn(*args) if context is None else context.run(fn, *args)
            if context is None:
                return call_under(plan, states, fn, args, {})
            return context.run(call_under, plan, states, fn, args, {})
        except BaseException:
            context = plan = None  # the traceback keeps this frame
            del snapshot, fn, args
            raise
        finally:
            put_current(thread, outer)

    def end(self) -> None:
        """Let go of the context: what the engine still holds of the pass needs none."""
        self._snapshot = None
        self._leans.clear()

    def _lean_here(self, snapshot: Snapshot) -> _Lean:
        """
        Return what this thread needs, which is looked up once for the whole pass.

        A carrier of something that is set neither there nor here is left out: a
        chain of small nodes would spend more on looking at it than on itself. One
        Context serves all nodes of the pass on this thread: as without us, one node
        finds what another has set in it.
        """
        _bind_device()
        full = snapshot._plan
        wanted = tuple(
            is_set(step.carrier, state) or is_set(step.carrier, found)
            for step, state, found in zip(full.steps, snapshot._states, full.here())
        )
        states = tuple(state for state, want in zip(snapshot._states, wanted) if want)
        context = snapshot._context_to_enter() if full.in_context else None
        lean = _Lean(context, full.lean(wanted) if states else None, states)
        self._leans[get_ident()] = lean
        return lean


def put_current(thread: int, backward: Backward | None) -> None:
    """Note the pass whose context `thread` has from now on."""
    if backward is None:
        current.pop(thread, None)
    else:
        current[thread] = backward


def _bind_device() -> None:
    """Bind the CUDA context of the device that the engine chose, which Triton needs."""
    carrier: Any = registry.get("torch.cuda_device")
    bind = getattr(carrier, "bind_current", None)
    if bind is not None:
        bind()
