"""Probes of CUDA: the device and the stream that a kernel would be launched on."""

# ruff: noqa: PLC0415 - torch is imported only when it is probed

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ctxcarry.diagnose.probes._probe import CannotProbeError, Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("device", "stream")


@contextmanager
def device() -> Iterator[Probe]:
    """Probe the current device, where there is another one to make current."""
    import torch

    if torch.cuda.device_count() < 2:  # noqa: PLR2004
        msg = "a second CUDA device is needed to see whether the current one is carried"
        raise CannotProbeError(msg)
    torch.cuda.init()  # type: ignore[no-untyped-call]  # of torch
    other = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
    yield Probe(lambda: torch.cuda.device(other), torch.cuda.current_device)


@contextmanager
def stream() -> Iterator[Probe]:
    """Probe the current stream."""
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]  # of torch
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    yield Probe(lambda: torch.cuda.stream(other), lambda: torch.cuda.current_stream().stream_id)
