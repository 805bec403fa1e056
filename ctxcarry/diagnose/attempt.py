"""One attempt to bring a context over a boundary, and what became of it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ctxcarry._carrier import MISSING, shorten
from ctxcarry._states import same_state
from ctxcarry.diagnose.probes import ProbeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ctxcarry._policy import Policy
    from ctxcarry.diagnose.boundaries import Cross, Crossing
    from ctxcarry.diagnose.probes import Probe, Read

__all__ = ("Attempt", "told")


class Attempt:
    """One crossing with the context set, and what the near side saw of it."""

    def __init__(
        self,
        cross: Cross,
        probe: Probe,
        policies: Sequence[Policy] = (),
        far_read: Read | None = None,
    ) -> None:
        self._probe = probe
        self._policies = policies
        self._tells = far_read is not None
        self._unset: object = MISSING
        self._wanted: object = MISSING
        self._still: object = MISSING
        self._left = False
        self.crossing: Crossing | None = None
        self.error: Exception | None = None
        try:
            self.crossing = cross(far_read or probe.read, self._handing)
            self.error = self.crossing.error
        except Exception as error:  # noqa: BLE001 - told in the cell
            self.error = error

    def lost(self) -> str | None:
        """Say how the context did not arrive; None if it did."""
        if self.error is not None:
            return told(self.error)
        assert self.crossing is not None
        seen = self.crossing.inside
        wanted = self._probe.tell(self._wanted) if self._tells else self._wanted
        if same_state(wanted, seen):
            return None
        return f"the work saw {shorten(seen)} instead of {shorten(wanted)}"

    def stays(self) -> str | None:
        """Say which thread is not as it was; None if both are."""
        if self.crossing is None:
            return None
        pairs = [("the worker", self.crossing.before, self.crossing.after)]
        if self._left:
            pairs += [
                ("the thread that handed over", self._wanted, self._still),
                ("the thread that handed over", self._unset, self._probe.read()),
            ]
        for thread, before, after in pairs:
            if not same_state(before, after):
                return f"{thread} was left with {shorten(after)}, and had {shorten(before)} before"
        return None

    @contextmanager
    def _handing(self) -> Iterator[None]:
        read = self._probe.read
        self._unset = read()
        with self._probe.set():
            self._wanted = read()
            if same_state(self._unset, self._wanted):
                msg = f"the probe set the context, but reads {shorten(self._wanted)} as before"
                raise ProbeError(msg)
            with ExitStack() as stack:
                for policy in self._policies:
                    stack.enter_context(policy)
                yield
            self._still = read()
        self._left = True


def told(error: BaseException) -> str:
    """Return `error` in words, on one line, with what a group consists of."""
    inner = [told(each) for each in getattr(error, "exceptions", ())]
    text = "; ".join(inner) if inner else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
