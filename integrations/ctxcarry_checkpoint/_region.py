"""Regions: names for parts of a forward, for policies and reports."""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ("current", "region")

_F = TypeVar("_F", bound="Callable[..., Any]")

_open: ContextVar[tuple[str, ...]] = ContextVar("ctxcarry_checkpoint.regions", default=())


@final
class region:  # noqa: N801  (it reads as a verb, in a with statement and as a decorator)
    """
    Name what runs within, for the policies and reports of checkpoints.

    Regions nest, and the same one may be entered again while it is open, by several threads
    and tasks. Compiled code opens none; torch.compile breaks its graph at a region that was
    made outside of it.

    Args:
        name: The name, which ``policies.regions(name)`` and ``regions=`` match.

    Examples:
        As a context manager, and as a decorator of a function or a coroutine function:

            with region("attention"):
                ...

            @region("mlp")
            def forward(self, x): ...

    Raises:
        TypeError: If the name is no text.
        ValueError: If it is empty.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            hint = ' As a decorator it is written @region("name").' if callable(name) else ""
            msg = f"the name of a region is text; given {name!r}, a {type(name).__name__}.{hint}"
            raise TypeError(msg)
        if not name:
            msg = "the name of a region is not empty, so that a policy can match it"
            raise ValueError(msg)
        self.name = name

    def __enter__(self) -> region:
        if not torch.compiler.is_compiling():
            _open.set((*_open.get(), self.name))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if torch.compiler.is_compiling():
            return
        names = _open.get()
        if names and names[-1] == self.name:
            _open.set(names[:-1])
            return
        # A generator may be left after what its caller has opened in the meantime, or in a
        # context that does not know it.
        for at in range(len(names) - 1, -1, -1):
            if names[at] == self.name:
                _open.set(names[:at] + names[at + 1 :])
                break

    def __call__(self, function: _F) -> _F:
        """
        Return the function, run within the region.

        Args:
            function: A function or a coroutine function.

        Raises:
            TypeError: If it is a generator function, whose caller would be in the region too.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            msg = (
                f"a region cannot decorate the generator function {function.__qualname__}, "
                "since its caller would be in the region as well. Open it within, between yields"
            )
            raise TypeError(msg)
        name = self.name
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
                with region(name):
                    return await function(*args, **kwargs)

            return cast("_F", run_coroutine)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            # A new one, since torch.compile can enter only what it has seen made.
            with region(name):
                return function(*args, **kwargs)

        return cast("_F", run)

    def __repr__(self) -> str:
        return f"region({self.name!r})"


def current() -> tuple[str, ...]:
    """Return the names of the regions that are open here, the innermost last."""
    return _open.get()
