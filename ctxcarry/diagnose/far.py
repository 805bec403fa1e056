"""The other process: one worker for all crossings, and how a context is read there."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import unwrap
from multiprocessing import get_context
from typing import TYPE_CHECKING

import ctxcarry
from ctxcarry.diagnose.environment import import_frameworks, quiet_about_numpy
from ctxcarry.diagnose.probes import GENERIC, PROBES, torch_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry.diagnose.probes import Probe, Read

__all__ = ("FarRead", "FarWorker")


@dataclass(frozen=True)
class FarRead:
    """
    Read a context in another process, as values that mean something here too.

    Attributes:
        carrier: The name of its carrier, whose probe is set up there as well.
        world: Rank and size of the process group over here, which is faked there.
    """

    carrier: str
    world: tuple[int, int]

    def __call__(self) -> object:
        """Return what code there sees."""
        torch_groups.world = self.world
        probe = _probe_of(self.carrier)
        return probe.tell(probe.read())


class FarWorker:
    """
    A pool of one process, started once, since that takes as long as all other crossings.

    Started afresh and not forked: a fork has everything that its parent had.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Start the process, which gets ready meanwhile, and end it afterwards."""
        # What else is set and cannot travel is told in its own cell.
        pool = ctxcarry.executor(
            max_workers=1, kind="process", mp_context=get_context("spawn"), not_portable="skip"
        )
        assert isinstance(pool, ProcessPoolExecutor)
        with pool:
            unwrap(ProcessPoolExecutor.submit)(pool, import_frameworks)
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def plain(self, work: Read) -> object:
        """Run `work` there as the standard library does."""
        assert self._pool is not None
        return unwrap(ProcessPoolExecutor.submit)(self._pool, work).result()

    def carried(self, work: Read) -> object:
        """Run `work` there in the context of this moment."""
        assert self._pool is not None
        return self._pool.submit(work).result()


_current: tuple[str, Probe] | None = None
_open = ExitStack()


def _probe_of(carrier: str) -> Probe:
    """Return the probe of `carrier` in this process, set up in place of the last one."""
    global _current  # noqa: PLW0603 - the worker's own
    if _current is None or _current[0] != carrier:
        _open.close()
        _current = None
        make = PROBES.get(carrier) or GENERIC[carrier]
        with quiet_about_numpy():
            _current = carrier, _open.enter_context(make())
    return _current[1]
