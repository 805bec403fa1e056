"""Doctor: the matrix and its surroundings in one report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ctxcarry
from ctxcarry._catalog import KNOWN
from ctxcarry.diagnose.environment import import_frameworks, load_offered, versions
from ctxcarry.diagnose.matrix import run_matrix

if TYPE_CHECKING:
    from ctxcarry.diagnose.environment import Absent
    from ctxcarry.diagnose.matrix import Matrix

__all__ = ("Report", "examine")


@dataclass(frozen=True)
class Report:
    """
    What `examine` found.

    Attributes:
        matrix: Every carrier over every boundary.
        faults: Carriers that failed outside of a cell, each with what happened.
        versions: By distribution; None if not installed.
        absent: Frameworks whose contexts are not in the matrix.
        unavailable: Contexts that exist but cannot be carried, each with the reason.
        installed: The boundaries that were instrumented when doctor was called.
    """

    matrix: Matrix
    faults: dict[str, str]
    versions: dict[str, str | None]
    absent: tuple[Absent, ...]
    unavailable: dict[str, str]
    installed: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that is here is carried."""
        return not self.faults and self.matrix.ok


def examine() -> Report:
    """
    Run the matrix for all that is installed here.

    Imports the frameworks. Otherwise leaves the process as it found it: the
    carriers of entry points are registered for the time being only.

    Returns:
        The report; nothing is printed.
    """
    absent, lacking = import_frameworks()
    registered = {carrier.name for carrier in ctxcarry.carriers()}
    try:
        faults = load_offered()
        matrix = run_matrix()
    finally:
        for carrier in ctxcarry.carriers():
            # What an entry point made the first to import keeps its catalog carriers.
            if carrier.name not in registered and carrier.name not in KNOWN:
                ctxcarry.unregister(carrier.name)
    return Report(
        matrix,
        faults | matrix.faults,
        versions(),
        absent,
        ctxcarry.registry.unavailable() | lacking,
        ctxcarry.installed(),
    )
