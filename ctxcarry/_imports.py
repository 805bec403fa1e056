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
        executing = module is not None and _is_executing(module)
        if module is None or executing:
            _waiting.setdefault(name, []).append(call)
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
            if module is not None and module.__spec__ is not None:
                _watch(module.__spec__)
            return
    call()


def _is_executing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _arrived(name: str) -> None:
    with _lock:
        calls = _waiting.pop(name, [])
    for call in calls:
        call()


def _watch(spec: ModuleSpec) -> None:
    """
    Have `_arrived` called when the module of `spec` has been executed.

    The last thing that importlib does is to clear ``_initializing`` on the spec,
    whatever the loader is and whichever thread imports. So the spec gets a class
    that notices, and its own back then.
    """
    own = type(spec)
    if not isinstance(vars(own).get("_initializing"), _Initializing):
        before = vars(spec).pop("_initializing", False)
        spec.__class__ = type(own.__name__, (own,), {"_initializing": _Initializing(before)})


class _Initializing:
    """The attribute of that name on the spec of a module that is awaited."""

    def __init__(self, value: bool) -> None:  # noqa: FBT001 - as importlib sets it
        self._value = value

    def __get__(self, spec: ModuleSpec | None, owner: type | None = None) -> bool:
        return self._value

    def __set__(self, spec: ModuleSpec, value: bool) -> None:  # noqa: FBT001
        if value:
            self._value = True
            return
        spec.__class__ = type(spec).__base__  # type: ignore[assignment]
        spec._initializing = False  # type: ignore[attr-defined]
        # A module whose execution failed is not there any more, and may come again.
        if spec.name in sys.modules:
            _arrived(spec.name)


class _Finder:
    """Let the other finders find an awaited module, and watch what they find."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        spec = self._from_others(name, path, target)
        if spec is not None:
            _watch(spec)
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
