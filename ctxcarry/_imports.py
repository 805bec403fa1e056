"""
Call back when a module has been imported, without importing it.

`wrapt.when_imported` does this too, but takes 100 ms to import where all of
ctxcarry may take 15.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ("when_imported",)

_lock = threading.RLock()
_waiting: dict[str, list[Callable[[], None]]] = {}


def when_imported(name: str, call: Callable[[], None]) -> None:
    """Call ``call()`` once the module `name` has been executed; now, if it has been."""
    with _lock:
        module = sys.modules.get(name)
        if module is None or _is_executing(module):
            _waiting.setdefault(name, []).append(call)
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
            return
    call()


def _is_executing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _arrived(name: str) -> None:
    with _lock:
        calls = _waiting.pop(name, [])
    for call in calls:
        call()


class _Finder:
    """
    Let the other finders find an awaited module, and note when it has been executed.

    The loader's ``exec_module`` is replaced on the instance for that one call, so
    that nothing stays behind: the module keeps its own loader and spec.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        spec = self._from_others(name, path, target)
        loader = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            _arrived(name)

        loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec

    def _from_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    return spec
        return None


_finder = _Finder()
