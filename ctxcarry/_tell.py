"""Warn, where an exception would come out of somebody's import statement."""

from __future__ import annotations

import logging
import warnings

from ctxcarry.errors import CtxCarryWarning

__all__ = ("tell",)


def tell(message: str) -> None:
    """Warn of something that cannot be carried here; log it where warnings are errors."""
    try:
        warnings.warn(message, CtxCarryWarning, stacklevel=3)
    except CtxCarryWarning:
        logging.getLogger("ctxcarry").exception(message)
