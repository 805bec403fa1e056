"""The listing of the catalog: what can be carried, and what is here."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import ctxcarry
from ctxcarry._catalog import CATALOG
from ctxcarry.diagnose.environment import import_frameworks, load_offered

if TYPE_CHECKING:
    from ctxcarry import Carrier
    from ctxcarry.diagnose.environment import Absent

__all__ = ("NOT_IMPORTED", "PRESENT", "UNAVAILABLE", "Entry", "list_carriers")

PRESENT: Final = "present"
NOT_IMPORTED: Final = "not imported"
UNAVAILABLE: Final = "unavailable"


@dataclass(frozen=True)
class Entry:
    """
    One carrier.

    Attributes:
        name: Its name.
        where: The module in which its context lives, or whose carrier it is.
        what: The first line of its documentation; empty when it is not present.
        status: `PRESENT`, `NOT_IMPORTED` or `UNAVAILABLE`.
        reason: Why it is not present; None when it is.
    """

    name: str
    where: str
    what: str
    status: str
    reason: str | None


def list_carriers() -> tuple[Entry, ...]:
    """
    Return every carrier that is registered or known, after importing the frameworks.

    Registers the carriers of entry points.
    """
    frameworks, without = import_frameworks()
    absent = {each.framework: each for each in frameworks}
    failed = load_offered()
    homes = {name: module for module, _, names in CATALOG for name in names}
    entries = [_present(carrier, homes) for carrier in ctxcarry.carriers()]
    lacking = ctxcarry.registry.unavailable() | without | failed
    entries += [
        Entry(name, homes.get(name, "an entry point"), "", UNAVAILABLE, reason)
        for name, reason in lacking.items()
    ]
    listed = {entry.name for entry in entries}
    entries += [
        Entry(name, module, "", NOT_IMPORTED, _why(absent.get(module.partition(".")[0])))
        for name, module in homes.items()
        if name not in listed
    ]
    return tuple(entries)


def _present(carrier: Carrier, homes: dict[str, str]) -> Entry:
    doc = inspect.getdoc(type(carrier)) or ""
    what = doc.partition("\n")[0]
    where = homes.get(carrier.name, type(carrier).__module__)
    return Entry(carrier.name, where, what, PRESENT, None)


def _why(absent: Absent | None) -> str | None:
    if absent is None:
        return None
    reason = f"{absent.framework} {absent.reason}"
    return f"{reason}: {absent.fix}" if absent.fix else reason
