"""Where in the user's code an operator was called, and in which module."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

__all__ = ("ModuleNames", "calling_lines")

_OWN = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_MOST = 6


def calling_lines() -> tuple[str, ...]:
    """
    Return the lines of the running thread outside torch and this package, innermost first.

    Where torch calls itself, as modules do, the lines above it follow.
    """
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MOST:
        name = frame.f_code.co_filename
        if not name.startswith((_OWN, _TORCH, "<")):
            found.append(f"{name}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


class ModuleNames:
    """
    Follow which module of a block runs, while entered.

    Args:
        root: The module whose submodules have the names, or None.
    """

    def __init__(self, root: nn.Module | None) -> None:
        self._names: dict[int, str] = {}
        self._root = root
        self._stack: list[str] = []
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        """Return the name of the innermost module, "" outside all of them."""
        return self._stack[-1] if self._stack else ""

    def __enter__(self) -> Self:
        if self._root is None:
            return self
        for name, module in self._root.named_modules():
            self._names[id(module)] = name
            if module is not self._root:
                self._handles += [
                    module.register_forward_pre_hook(self._before, prepend=True),
                    module.register_forward_hook(self._after, always_call=True),
                ]
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: nn.Module, _args: Any) -> None:
        self._stack.append(self._names[id(module)])

    def _after(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
