"""Process pools that carry: `ctxcarry.executor(kind="process")`."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from ctxcarry._capture import capture_with
from ctxcarry._default import registry as default_registry
from ctxcarry._policy import checked, policy_of
from ctxcarry._wire import checked_choice
from ctxcarry.boundaries._shipped import shipped, start_worker, submits_for_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from multiprocessing.context import BaseContext
    from typing import ParamSpec, TypeVar

    from ctxcarry._policy import Policy
    from ctxcarry._registry import Registry

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ("CarryProcessExecutor",)


class CarryProcessExecutor(ProcessPoolExecutor):
    """The pool that ``executor(kind="process")`` returns; its arguments are described there."""

    _carries = True

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        policy: Policy | None = None,
        registry: Registry | None = None,
        not_portable: str | None = None,
        **kwargs: Any,
    ) -> None:
        if initializer is not None and not callable(initializer):
            msg = f"initializer must be a callable, not {initializer!r}"
            raise TypeError(msg)
        super().__init__(max_workers, mp_context, start_worker, (initializer, initargs), **kwargs)
        self._policy = checked(policy)
        self._registry = default_registry if registry is None else registry
        self._registry.plan(policy)
        self._not_portable = checked_choice(not_portable)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedule ``fn(*args, **kwargs)`` in the context of this moment."""
        return super().submit(self._shipped(fn), *args, **kwargs)

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **kwargs: Any) -> Iterator[T]:
        """Map `fn` over `iterables` in the context of this moment."""
        # The pool submits a function of its own, around ours, for each chunk.
        return super().map(self._shipped(fn), *iterables, **kwargs)

    def _shipped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        if submits_for_map(fn):
            return fn
        own = policy_of(fn)
        plan = self._registry.plan(self._policy if own is None else own.within(self._policy))
        return fn if plan.empty else shipped(capture_with(plan), fn, self._not_portable)
