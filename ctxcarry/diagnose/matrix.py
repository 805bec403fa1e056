"""The matrix: every carrier over every boundary, run both ways. Nothing is printed here."""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import ctxcarry
from ctxcarry.diagnose.attempt import Attempt, told
from ctxcarry.diagnose.boundaries import BOUNDARIES, Crossing, as_found, is_here
from ctxcarry.diagnose.far import FarRead
from ctxcarry.diagnose.probes import GENERIC, PROBES, CannotProbeError
from ctxcarry.diagnose.probes.torch_groups import fake_world
from ctxcarry.errors import CarrierError, NotPortableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctxcarry import Carrier
    from ctxcarry._policy import Policy
    from ctxcarry.diagnose.boundaries import Boundary, Cross, Handing
    from ctxcarry.diagnose.probes import Maker, Probe, Read

__all__ = (
    "NOT_PORTABLE",
    "NO_PROBE",
    "OWNED",
    "PROBED",
    "PROCESS_WIDE",
    "UNCROSSED",
    "Cell",
    "Matrix",
    "Row",
    "run_matrix",
)

PROBED: Final = "probed"
PROCESS_WIDE: Final = "process-wide"
NO_PROBE: Final = "no probe"
NOT_PORTABLE: Final = "not portable"
OWNED: Final = "torch's own"
UNCROSSED: Final = frozenset({NOT_PORTABLE, OWNED})


@dataclass(frozen=True)
class Cell:
    """
    One carrier over one boundary.

    Attributes:
        plain: ``"lost"`` or ``"kept"``; None when it could not be found out.
        carried: ``"ok"`` or ``"failed"``; `NOT_PORTABLE` where it stays in its process
            and `OWNED` where torch sets it itself, which are no failures.
        after: ``"clean"`` when both threads were as before, ``"left"`` when not;
            None when it could not be found out.
        error: What went wrong, in words; None when nothing did.
        reason: Why it is not portable, or not ours to carry.
    """

    plain: str | None
    carried: str
    after: str | None
    error: str | None = None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the context arrived and nothing stayed behind."""
        return self.error is None


@dataclass(frozen=True)
class Row:
    """
    One carrier.

    Attributes:
        carrier: Its name.
        kind: `PROBED`, `PROCESS_WIDE` or `NO_PROBE`.
        cells: By boundary.
        reason: What this machine lacks to probe it.
    """

    carrier: str
    kind: str
    cells: dict[str, Cell]
    reason: str | None = None


@dataclass(frozen=True)
class Matrix:
    """
    All rows.

    Attributes:
        boundaries: The columns.
        rows: A row for each carrier.
        faults: Carriers that failed while others were probed, each with what
            happened. They were left out of the others' cells from then on.
    """

    boundaries: tuple[Boundary, ...]
    rows: tuple[Row, ...]
    faults: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether every context arrived everywhere and nothing stayed behind."""
        return not self.faults and all(c.ok for row in self.rows for c in row.cells.values())


def run_matrix(boundaries: Sequence[Boundary] = BOUNDARIES) -> Matrix:
    """
    Run the carriers of the default registry, and one of each generic kind.

    Registry, instrumentation and contexts are afterwards as they were.

    Args:
        boundaries: What to cross, as far as it is here.

    Returns:
        What was seen. What a probe raises is in its cells.
    """
    return Context().run(_run, tuple(filter(is_here, boundaries)))


def _run(boundaries: tuple[Boundary, ...]) -> Matrix:
    faults: dict[str, str] = {}
    with as_found(), ExitStack() as stack:
        for opened in {boundary.opened for boundary in boundaries}:
            stack.enter_context(opened())
        rows = [_row(carrier, boundaries, faults) for carrier in ctxcarry.carriers()]
        rows += [_probed(name, make, boundaries, faults) for name, make in GENERIC.items()]
    return Matrix(boundaries, tuple(rows), faults)


def _row(carrier: Carrier, boundaries: tuple[Boundary, ...], faults: dict[str, str]) -> Row:
    if getattr(carrier, "process_wide", False):
        return Row(carrier.name, PROCESS_WIDE, {})
    make = PROBES.get(carrier.name)
    if make is None:
        return Row(carrier.name, NO_PROBE, {})
    return _probed(carrier.name, make, boundaries, faults)


def _probed(
    name: str, make: Maker, boundaries: tuple[Boundary, ...], faults: dict[str, str]
) -> Row:
    try:
        with make() as probe:
            cells = {b.name: _cell(name, probe, b, faults) for b in boundaries}
    except CannotProbeError as lacking:
        return Row(name, NO_PROBE, {}, str(lacking))
    except Exception as error:  # noqa: BLE001 - told in every cell of the row
        failed = Cell(None, "failed", None, f"the probe failed: {told(error)}")
        cells = {b.name: failed for b in boundaries}
    return Row(name, PROBED, cells)


def _cell(name: str, probe: Probe, boundary: Boundary, faults: dict[str, str]) -> Cell:
    if name in boundary.owned:
        why = "autograd or the checkpoint sets it there itself"
        return Cell(None, OWNED, None, None, why)
    far_read = FarRead(name, fake_world()) if boundary.far else None
    if far_read is not None:
        if probe.stays is not None:
            return Cell(None, NOT_PORTABLE, None, None, probe.stays)
        packing = Attempt(_packing(name), probe).error
        if isinstance(packing, NotPortableError):
            return Cell(None, NOT_PORTABLE, None, None, _why_not(name, packing))
        if packing is not None:
            return Cell(None, "failed", None, told(packing))
    plain = Attempt(boundary.plain, probe, (), far_read)
    if plain.error is not None:
        return Cell(None, "failed", None, f"the plain way failed: {told(plain.error)}")
    carried = Attempt(boundary.carried, probe, _policies(name, probe, faults), far_read)
    while others := _to_blame(carried.error, {name, *faults}):
        faults.update(others)
        carried = Attempt(boundary.carried, probe, _policies(name, probe, faults), far_read)
    lost, stays = carried.lost(), carried.stays()
    return Cell(
        "lost" if plain.lost() else "kept",
        "failed" if lost else "ok",
        None if carried.crossing is None else "left" if stays else "clean",
        "; ".join(filter(None, (lost, stays))) or None,
    )


def _packing(name: str) -> Cross:
    """Go as far as another process needs: dump the context."""

    def pack(_: Read, handing: Handing) -> Crossing:
        with handing():
            ctxcarry.capture(only=name).dumps(not_portable="raise")
        return Crossing(None, None, None)

    return pack


def _why_not(name: str, error: NotPortableError) -> str:
    carrier = next(c for c in ctxcarry.carriers() if c.name == name)
    if not hasattr(carrier, "dump"):
        return "its carrier has no dump and load"
    return told(error)


def _policies(name: str, probe: Probe, faults: dict[str, str]) -> list[Policy]:
    if probe.alone:
        return [ctxcarry.policy(propagate=name, unchanged="*")]
    at_fault = faults.keys() - {name}
    return [ctxcarry.suppress(*at_fault)] if at_fault else []


def _to_blame(error: BaseException | None, known: set[str]) -> dict[str, str]:
    """Return the carriers that `error` names, apart from those `known`, each with its words."""
    if isinstance(error, CarrierError):
        return {} if error.carrier in known else {error.carrier: str(error)}
    blamed: dict[str, str] = {}
    for inner in getattr(error, "exceptions", ()):
        blamed |= _to_blame(inner, known)
    return blamed
