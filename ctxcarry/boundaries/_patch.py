"""Patches that can be put on and taken off in any order."""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Patch",)


class Patch:
    """
    One replaced function of a class or module.

    Taking it off puts the original back only if nobody has patched on top since;
    else the replacement stays where it is and passes every call through, and
    putting the patch on again revives it.

    Args:
        owner: The class or module.
        name: Name of the function in it.
        make: Called with the original, returns the replacement.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._owner = owner
        self._name = name
        self._make = make
        self._original: Any = None
        self._replacement: Any = None
        self._inherited = False
        self.active = False

    def put_on(self) -> None:
        """Replace the function, once."""
        self.active = True
        if self._replacement is not None and self._is_reached():
            return
        original = getattr(self._owner, self._name)
        # As it is there: a static method would come back as a plain function.
        self._original = vars(self._owner).get(self._name, original)
        self._inherited = self._name not in vars(self._owner)
        replacement: Any = update_wrapper(self._make(original), original)
        if isinstance(self._original, staticmethod):
            replacement = staticmethod(replacement)
        self._replacement = replacement
        setattr(self._owner, self._name, replacement)

    def take_off(self) -> None:
        """Put the original back, or fall silent under another's patch."""
        self.active = False
        if self._replacement is not None and vars(self._owner).get(self._name) is self._replacement:
            if self._inherited:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._original)
            self._replacement = self._original = None

    def _is_reached(self) -> bool:
        """Say whether the replacement is still what is called, or beneath what is."""
        function = vars(self._owner).get(self._name)
        while function is not None:
            if function is self._replacement:
                return True
            function = getattr(function, "__wrapped__", None)
        return False
