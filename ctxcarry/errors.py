"""Errors of ctxcarry: each says what happened, what is available, and the fix."""

from __future__ import annotations

__all__ = (
    "CarrierError",
    "ContextMismatchError",
    "CtxCarryError",
    "CtxCarryWarning",
    "DuplicateCarrierError",
    "LeakError",
    "NotPortableError",
    "UnknownCarrierError",
    "WireError",
)


class CtxCarryWarning(UserWarning):
    """A context will not be carried, or only in part; nothing has failed yet."""


class CtxCarryError(Exception):
    """Base of every error that ctxcarry raises on its own account."""


class CarrierError(CtxCarryError, RuntimeError):
    """
    A carrier failed to capture, apply or undo its context.

    Subclasses `RuntimeError`: what failed is the state of the running program,
    not the arguments of the call that found out. The carrier's own exception is
    the ``__cause__``.

    Attributes:
        carrier: Name of the carrier that failed.
        stage: ``"capture"``, ``"apply"``, ``"undo"``, ``"dump"`` or ``"load"``.
    """

    def __init__(self, carrier: str, stage: str, reason: str) -> None:
        super().__init__(carrier, stage, reason)
        self.carrier = carrier
        self.stage = stage
        self.reason = reason

    def __str__(self) -> str:
        return f"carrier {self.carrier!r} failed to {self.stage} its context: {self.reason}"


class DuplicateCarrierError(CtxCarryError, ValueError):
    """Two carriers claim one name. Subclasses `ValueError`: the name given is the fault."""


class UnknownCarrierError(CtxCarryError, LookupError):
    """
    No carrier has this name.

    Subclasses `LookupError` and not `KeyError`, whose ``str()`` would quote the
    whole message.
    """

    @classmethod
    def of(cls, name: str, known: list[str]) -> UnknownCarrierError:
        """Build the error for `name`, with the closest of the `known` names."""
        # Imported here: difflib costs more than the rest of this module.
        from difflib import get_close_matches  # noqa: PLC0415

        close = get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        listing = ", ".join(sorted(known)) or "none"
        return cls(
            f"no carrier is named {name!r}.{hint} Available: {listing}. "
            "Register your own with ctxcarry.register(carrier)."
        )


class NotPortableError(CtxCarryError, TypeError):
    """A context cannot leave this process. Subclasses `TypeError`, as pickling errors do."""


class WireError(CtxCarryError, ValueError):
    """Bytes are not a snapshot that this version can read. Subclasses `ValueError`."""


class ContextMismatchError(CtxCarryError, RuntimeError):
    """A context named by another process is here under the same name, but is not the same."""


class LeakError(CtxCarryError, RuntimeError):
    """A context was left in the wrong thread, task or order, or outlived the work it was for."""
