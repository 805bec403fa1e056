"""Names under which another process finds the same object: ``module:attribute``."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING
from ctxcarry.errors import WireError

if TYPE_CHECKING:
    from contextvars import ContextVar

__all__ = ("address_of", "address_of_variable", "found_at", "place_of")

# Where a global of a module was found before: the module's namespace, and its name there.
_places: dict[str, tuple[dict[str, Any], str]] = {}
_variables: dict[ContextVar[Any], tuple[str | None, int]] = {}


def address_of(obj: Any) -> str | None:
    """Return where `obj`, a function or class, can be imported from; None if nowhere."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    address = f"{module}:{name}"
    return address if found_at(address, imports=False) is obj else None


def address_of_variable(variable: ContextVar[Any]) -> str | None:
    """
    Return where `variable` is to be found as a global of a module; None if nowhere.

    A ContextVar knows its name but not its module, so all modules are searched,
    once for each variable (again for one not found, when modules have come).
    """
    address, searched = _variables.get(variable, (None, -1))
    if address is None and searched != len(sys.modules):
        address = _search(variable)
        _variables[variable] = address, len(sys.modules)
    return address


def found_at(address: str, *, imports: bool) -> Any:
    """
    Return what is at `address`, or `MISSING`.

    Args:
        address: ``module:attribute``, the attribute possibly dotted.
        imports: Whether the module may be imported. If not, nothing of it is
            run: neither an import nor a module's ``__getattr__``.

    Raises:
        WireError: If the module is there and cannot be imported.
    """
    place = _places.get(address)
    if place is not None:
        return place[0].get(place[1], MISSING)
    module_name, _, path = address.partition(":")
    parts = path.split(".")
    if not all(module_name.split(".")) or not all(parts):
        return MISSING
    found: Any = sys.modules.get(module_name)
    if found is None and imports:
        try:
            found = import_module(module_name)
        except ModuleNotFoundError:
            return MISSING
        except Exception as cause:
            msg = f"{module_name!r} cannot be imported: {type(cause).__name__}: {cause}"
            raise WireError(msg) from cause
    for part in parts:
        try:
            found = vars(found)[part]
        except (KeyError, TypeError):
            return MISSING
    if len(parts) == 1:
        # As the keys there are, which then need not be compared character by character.
        _places[address] = vars(sys.modules[module_name]), sys.intern(path)
    return found


def place_of(address: str) -> tuple[dict[str, Any], str] | None:
    """Return the namespace in which `found_at` looks up `address`, and the name there, if so."""
    return _places.get(address)


def _search(variable: ContextVar[Any]) -> str | None:
    # A script's own module last: it imports variables, and is another one elsewhere.
    modules = sorted(sys.modules.items(), key=lambda item: item[0] in {"__main__", "__mp_main__"})
    for name, module in modules:
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is variable:
                return f"{name}:{attribute}"
    return None
