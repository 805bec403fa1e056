"""Snapshot: an immutable picture of all carried contexts at one moment."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from ctxcarry._activate import call_under
from ctxcarry._active import Active
from ctxcarry._bind import bound
from ctxcarry._carrier import MISSING
from ctxcarry._contexts import HERE, filled, laid_over, overlaid
from ctxcarry._explain import explain
from ctxcarry._plan import CONTEXTVARS, variables_of
from ctxcarry._policy import CLEAR, UNCHANGED_BY_POLICY, ambient_policy
from ctxcarry._states import is_set
from ctxcarry._step import STEPPED, made_by, stepped

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar
    from typing import ParamSpec, TypeVar

    from ctxcarry._capture import Edits
    from ctxcarry._plan import Plan
    from ctxcarry._registry import Registry

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ("Snapshot",)


class Snapshot:
    """
    All carried contexts as they were at one moment, on one thread.

    Immutable; one snapshot may be used by several threads at once. Made by
    `ctxcarry.capture`.
    """

    __slots__ = ("__weakref__", "_context", "_edits", "_origin", "_plan", "_states")

    def __init__(
        self,
        plan: Plan,
        context: Context | None,
        states: tuple[object, ...],
        edits: Edits = (),
        origin: str | None = None,
    ) -> None:
        self._plan = plan
        self._context = context
        self._states = states
        self._edits = edits
        self._origin = origin

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call ``fn(*args, **kwargs)`` with this snapshot active, then undo it.

        ContextVars that `fn` sets are its own, as in ``Context.run``. When `fn`
        is a coroutine, generator or async generator function, its body runs
        under the snapshot at each step.

        Returns:
            What `fn` returns.

        Raises:
            CarrierError: If a context cannot be applied; `fn` is not called.
            ExceptionGroup: If `fn` returned and a context cannot be undone.
        """
        plan = self._plan
        result: Any
        try:
            if plan.in_context:
                context = self._context_to_enter()
                result = context.run(call_under, plan, self._states, fn, args, kwargs)
            else:
                result = call_under(plan, self._states, fn, args, kwargs)
            if type(result) in STEPPED and made_by(fn):
                result = stepped(self, result)
        except BaseException:
            context = None
            del self, plan  # see call_under
            raise
        return result  # type: ignore[no-any-return]

    def active(self) -> Active:
        """
        Return a context manager that makes this snapshot active in its block.

        It can be entered again, nested, and in several threads at once. Inside a
        block, ContextVars are set one by one: a variable that has no default, is
        set here and was not set in the snapshot keeps its value (`run` and
        `wrap` unset it). Do not ``await`` or ``yield`` inside the block; use
        `run`, `wrap` or `ctxcarry.carry_context` for that.

        Raises:
            LeakError: On leaving, if the block was entered in another thread or
                Context.
        """
        return Active(self)

    def wrap(self, fn: Callable[P, T]) -> Callable[P, T]:
        """
        Return `fn` bound to this snapshot: each call is ``self.run(fn, ...)``.

        Returns `fn` itself when there is nothing to carry.
        """
        return fn if self._plan.empty else bound(self, fn)

    def over(self, base: Snapshot) -> Snapshot:
        """
        Return this snapshot with the contexts of `base` where this one has none.

        Args:
            base: A snapshot of the same registry, such as what a worker's
                initializer set.
        """
        by_name = {
            step.name: state
            for step, state in zip(base._plan.steps, base._states)
            if is_set(step.carrier, state)
        }
        states = tuple(
            state
            if is_set(step.carrier, state) or self._plan.actions[step.name] == CLEAR
            else by_name.get(step.name, state)
            for step, state in zip(self._plan.steps, self._states)
        )
        context = self._context
        if context is not None and base._context is not None:
            context = filled(context, base._context)
        clears = {c for c, action in self._plan.edits if action == CLEAR}
        cleared = {v for c in clears for v in variables_of(c)}
        edits = tuple(
            (v, base._value_of(v) if value is MISSING and v not in cleared else value)
            for v, value in self._edits
        )
        return Snapshot(self._plan, context, states, edits, self._origin)

    def dumps(self, *, not_portable: str | None = None) -> bytes:
        """
        Return this snapshot as bytes for another process: contexts by name, not code.

        A Triton allocator travels by import path, process groups and meshes by
        name, global ranks and shape, ContextVars by the module that they are in.
        Contexts that are not set are left out, and left alone over there.

        Args:
            not_portable: What to do about a context that cannot travel:
                ``"raise"``, ``"warn"`` or ``"skip"``; as each carrier says unless
                given, which is to warn.

        Raises:
            NotPortableError: If a context cannot travel, and that is to raise.
            CarrierError: If a carrier's ``dump`` fails.
        """
        from ctxcarry._portable import dumps  # noqa: PLC0415 - needed for other processes only

        return dumps(self, not_portable)

    @classmethod
    def loads(
        cls,
        data: bytes,
        *,
        trusted: bool = False,
        strict: bool = False,
        registry: Registry | None = None,
    ) -> Snapshot:
        """
        Return the snapshot that `dumps` wrote, in this or another process.

        Args:
            data: The bytes.
            trusted: Whether pickled values are unpickled and names imported,
                both of which run code. Process pools do so with their own.
            strict: Raise where something cannot be loaded, instead of warning
                and carrying the rest.
            registry: Carriers to use instead of `ctxcarry.registry`.

        Raises:
            WireError: If the bytes are damaged, of another version, or (with
                `strict`) not loadable in full.
            ContextMismatchError: If a process group or mesh of this process is
                not what the snapshot names.
        """
        from ctxcarry._portable import loads  # noqa: PLC0415

        if registry is None:
            from ctxcarry._default import registry as default  # noqa: PLC0415

            registry = default
        return loads(data, trusted=trusted, strict=strict, registry=registry)

    def __reduce__(self) -> tuple[Callable[[bytes], Snapshot], tuple[bytes]]:
        return _loads_trusted, (self.dumps(),)

    def explain(self) -> str:
        """Return, a line for each carrier, what was captured, skipped or not set, and where."""
        return explain(self)

    def __repr__(self) -> str:
        return f"<Snapshot of {', '.join(self._set_names()) or 'nothing'}>"

    def _set_names(self) -> list[str]:
        states = zip(self._plan.steps, self._states)
        names = [step.name for step, state in states if is_set(step.carrier, state)]
        if self._context and list(self._context) != [ambient_policy]:
            names.insert(0, CONTEXTVARS)
        return names

    def _context_to_enter(self) -> Context:
        """Return a Context that nobody else has entered, as the plan asks for it."""
        if self._context is not None:
            context = self._context.copy()
        elif self._plan.contexts == CLEAR:
            context = Context()
        else:
            context = copy_context()
        if not self._plan.edits:
            return laid_over(context, self._edits) if self._edits else context
        # A registry of variables may have grown since: what is new was not set then.
        edits = dict(self._edits)
        for carrier, action in self._plan.edits:
            for variable in variables_of(carrier):
                edits.setdefault(variable, HERE if action == UNCHANGED_BY_POLICY else MISSING)
        return overlaid(context, edits.items())

    def _value_of(self, variable: ContextVar[Any]) -> object:
        for edited, value in self._edits:
            if edited is variable:
                return value
        return MISSING if self._context is None else self._context.get(variable, MISSING)


def _loads_trusted(data: bytes) -> Snapshot:
    """Load what a pickle holds, which its reader trusts already."""
    return Snapshot.loads(data, trusted=True)
