"""One backward pass, and the context of whoever started it, for what runs on other threads."""

from __future__ import annotations

from functools import cache, partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from ctxcarry._activate import call_under, set_back
from ctxcarry._capture import capture_with
from ctxcarry._carrier import UNCHANGED
from ctxcarry._catalog import ENGINES_OWN
from ctxcarry._default import registry
from ctxcarry._fuse import told
from ctxcarry._policy import Policy
from ctxcarry._snapshot import Snapshot
from ctxcarry._states import is_set
from ctxcarry._undo import failed, undo_all
from ctxcarry.boundaries._autograd_tls import KEY, found
from ctxcarry.boundaries._dynamo import leave_to_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._plan import Plan, Step

__all__ = (
    "Backward",
    "Pass",
    "bind_device",
    "call_in_pass",
    "capture_for_engine",
    "current",
    "put_current",
)

_POLICY: Final = Policy(unchanged=ENGINES_OWN)


def capture_for_engine(policy: Policy | None = None, *, everywhere: bool = False) -> Snapshot:
    """Return a snapshot of this thread without what is the engine's own."""
    policy = _POLICY if policy is None else _POLICY.within(policy)
    return capture_with(registry.plan(policy, everywhere=everywhere))


class Pass:
    """
    One call of ``backward()`` or ``grad()``.

    Attributes:
        home: The thread that all nodes on it belong to this pass, or 0 if there may
            be nodes of another one.
    """

    __slots__ = ("__weakref__", "home")

    def __init__(self, home: int) -> None:
        self.home = home


current: Final[dict[int, Pass]] = {}
"""
By thread: the pass whose context the thread has now, as it was started there or one
of its nodes runs there.

Not a ``threading.local``: some threads of the engine have a new Python state for
each node, for which making one would cost more than all else that is done here.
"""


class Backward(Pass):
    """
    A pass that takes the context of its start along.

    Its nodes run on the thread that started it, which has its context, or on threads
    of the engine, where `call` activates it.
    """

    __slots__ = ("_snapshot", "entries")

    def __init__(self, home: int) -> None:
        self.home = home
        self._snapshot: Snapshot | None = capture_for_engine()
        # By thread: what calls a function in the context of the pass, on a thread that
        # has nothing of its own.
        self.entries: dict[int, Callable[..., Any]] = {}

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call ``fn(*args)`` on a thread of the engine, in the context of this pass."""
        thread = get_ident()
        outer = current.get(thread)
        enter: Any
        if outer is None:
            enter = self.entries.get(thread) or self.entry(thread)
        elif self._snapshot is not None:
            # In the midst of another pass: whatever that one has set is in the way.
            enter = self._snapshot.run
        else:
            enter = _just_call
        current[thread] = self
        try:
            return enter(fn, *args)
        except BaseException:
            del enter, fn, args  # the traceback keeps this frame
            raise
        finally:
            put_current(thread, outer)

    def end(self) -> None:
        """Let go of the context: what the engine still holds of the pass needs none."""
        self._snapshot = None
        self.entries.clear()

    def entry(self, thread: int) -> Callable[..., Any]:
        """
        Return what enters the context on `thread`, this one, once for the whole pass.

        A carrier of something that is set neither there nor here is left out: a
        chain of small nodes would spend more on looking at it than on itself. One
        Context serves all nodes of the pass on this thread: as without us, one node
        finds what another has set in it.
        """
        bind_device()
        snapshot = self._snapshot
        if snapshot is None:  # it failed on another thread, and is over
            return _just_call
        full = snapshot._plan
        wanted = tuple(
            is_set(step.carrier, state) or is_set(step.carrier, here)
            for step, state, here in zip(full.steps, snapshot._states, full.here())
        )
        enter: Callable[..., Any] = _just_call
        if any(wanted):
            states = tuple(state for state, want in zip(snapshot._states, wanted) if want)
            lean = full.lean(wanted)
            if len(states) == 1:
                enter = _under_one(lean.steps[0], states[0])
            else:
                enter = partial(_under_all, lean, states)
        if full.in_context:
            run = snapshot._context_to_enter().run
            enter = run if enter is _just_call else partial(run, enter)
        self.entries[thread] = enter
        return enter


def call_in_pass(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call ``fn(*args)`` for a node, in the context of its pass."""
    thread = get_ident()
    running = current.get(thread)
    if running is not None and running.home == thread:
        return fn(*args)
    try:
        backward = found(KEY)
    except RuntimeError:  # nothing is stashed: it is no pass of ours
        backward = None
    if backward is None or backward is running:
        return fn(*args)
    return backward.call(fn, args)


def put_current(thread: int, running: Pass | None) -> None:
    """Note the pass whose context `thread` has from now on."""
    if running is None:
        current.pop(thread, None)
    else:
        current[thread] = running


def _just_call(fn: Callable[..., Any], /, *args: Any) -> Any:
    return fn(*args)


def _under_all(
    plan: Plan, states: tuple[object, ...], fn: Callable[..., Any], /, *args: Any
) -> Any:
    try:
        return call_under(plan, states, fn, args, {})
    except BaseException:
        del states, fn, args  # the traceback keeps this frame
        raise


def _under_one(step: Step, state: object) -> Callable[..., Any]:
    """Return what calls a function with one state current, the usual case."""
    make = getattr(step.carrier, "caller", None)
    sooner: Callable[..., Any] | None = None if make is None else make(state)
    if sooner is None:
        return partial(_call_under_one, step.apply, step.undo, step.name, state)
    _leave_once(getattr(sooner, "func", sooner))
    return sooner


_leave_once = cache(leave_to_interpreter)
"""For what is asked at each pass, and is the same method of a carrier each time."""


def _call_under_one(
    apply: Callable[[object], object],
    undo: Callable[[Any], object],
    name: str,
    state: object,
    fn: Callable[..., Any],
    /,
    *args: Any,
) -> Any:
    """Call `fn` with one state current: what `call_under` does, for the usual case."""
    try:
        token = apply(state)
    except Exception as cause:
        del state, fn, args
        raise failed(name, "apply", cause) from cause
    try:
        result = fn(*args)
    except BaseException as error:
        if token is not UNCHANGED:
            undo_all([(undo, token, name)], error)
        del state, fn, args, token  # the traceback keeps this frame
        raise
    if token is not UNCHANGED:
        undo_all([(undo, token, name)])
    return result


def bind_device() -> None:
    """Bind the CUDA context of the device that the engine chose, which Triton needs."""
    carrier: Any = registry.get("torch.cuda_device")
    bind = getattr(carrier, "bind_current", None)
    if bind is not None:
        bind()


# A pass or a recompute may run under a compiler, which has no use for any of this.
_ENTER: tuple[Callable[..., Any], ...] = (Snapshot.run, call_under, call_in_pass, Backward.call)
_ASIDE: tuple[Callable[..., Any], ...] = (Backward.__init__, Backward.entry, undo_all, set_back)
for _fn in _ENTER:
    leave_to_interpreter(_fn)
for _fn in _ASIDE:
    leave_to_interpreter(_fn, whole=True)
told.append(partial(leave_to_interpreter, whole=True))
