"""An actor of Ray, in a process of its own: the far side of a call through Ray."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ctxcarry
from ctxcarry.diagnose.environment import import_frameworks
from ctxcarry.errors import CtxCarryWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry.diagnose.probes import Read

__all__ = ("RayWorker",)


class _Reader:
    """The actor."""

    def __init__(self) -> None:
        import_frameworks()

    def call(self, work: Read) -> object:
        """Read what code sees here."""
        return work()


class RayWorker:
    """One actor for all crossings, on a Ray that runs already or is started for them."""

    def __init__(self) -> None:
        self._actor: Any = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Start the actor, and end it and Ray afterwards, unless Ray was there before."""
        ray: Any = import_module("ray")
        started = not ray.is_initialized()
        if started:
            ray.init(
                "local",  # whatever other Ray is running on this machine
                num_cpus=1,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        try:
            with ctxcarry.suppress():  # what is set here is not the actor's
                self._actor = ctxcarry.ray.remote(num_cpus=0)(_Reader).remote()
            yield
        finally:
            self._actor = None
            if started:
                ray.shutdown()

    def plain(self, work: Read) -> object:
        """Call the method as Ray does: with nothing to carry the call is Ray's own."""
        with ctxcarry.suppress():
            return self._result(self._actor.call.remote(work))

    def carried(self, work: Read) -> object:
        """Call it in the context of this moment."""
        with warnings.catch_warnings():
            # What else is set and cannot travel is told in its own cell.
            warnings.simplefilter("ignore", CtxCarryWarning)
            return self._result(self._actor.call.remote(work))

    def _result(self, reference: Any) -> object:
        ray: Any = import_module("ray")
        return ray.get(reference)
