"""What a device can do: flops, bytes, and how long it takes to start a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("Roofline",)

_T, _G = 1e12, 1e9
# Parts of the figures on the data sheets that large products and copies reach.
_FLOPS_REACHED, _BYTES_REACHED = 0.65, 0.85
_LAUNCH = 4e-6

# Dense figures: 16-bit products, 8-bit ones (0 if none), fp32 by tf32 (0 if none), fp32, bytes
# of memory, bytes from and to the host, bytes from and to other cards. The first that is found in
# the name of the device is taken, so those with longer names come first.
_CARDS: tuple[tuple[str, tuple[float, float, float, float, float, float, float]], ...] = (
    ("GB300", (2500, 5000, 1250, 80, 8000, 450, 900)),
    ("GB200", (2500, 5000, 1250, 80, 8000, 450, 900)),
    ("B300", (2250, 4500, 1125, 75, 8000, 64, 900)),
    ("B200", (2250, 4500, 1125, 75, 8000, 64, 900)),
    ("GH200", (989, 1979, 495, 67, 4000, 450, 450)),
    ("H200", (989, 1979, 495, 67, 4800, 64, 450)),
    ("H100 PCIe", (756, 1513, 378, 51, 2000, 64, 64)),
    ("H100 NVL", (835, 1671, 418, 60, 3900, 64, 300)),
    ("H100", (989, 1979, 495, 67, 3350, 64, 450)),
    ("H800", (989, 1979, 495, 67, 3350, 64, 200)),
    ("H20", (148, 296, 74, 44, 4000, 64, 450)),
    ("A100 SXM 40GB", (312, 0, 156, 19.5, 1555, 32, 300)),
    ("A100 PCIe", (312, 0, 156, 19.5, 1935, 32, 32)),
    ("A100", (312, 0, 156, 19.5, 2039, 32, 300)),
    ("A800", (312, 0, 156, 19.5, 2039, 32, 200)),
    ("L40S", (362, 733, 183, 91.6, 864, 32, 32)),
    ("L40", (181, 362, 90.5, 90.5, 864, 32, 32)),
    ("L4", (121, 242, 60, 30.3, 300, 32, 32)),
    ("RTX 6000 Ada", (364, 728, 182, 91.1, 960, 32, 32)),
    ("RTX PRO 6000", (504, 1008, 252, 126, 1792, 64, 64)),
    ("RTX A6000", (155, 0, 77, 38.7, 768, 32, 56)),
    ("RTX 5090", (210, 419, 105, 104.8, 1792, 64, 64)),
    ("RTX 4090", (165, 330, 82.6, 82.6, 1008, 32, 32)),
    ("RTX 4080", (97, 195, 48.7, 48.7, 717, 32, 32)),
    ("RTX 3090", (71, 0, 35.6, 35.6, 936, 32, 56)),
    ("A10G", (70, 0, 35, 35, 600, 32, 32)),
    ("A10", (125, 0, 62.5, 31.2, 600, 32, 32)),
    ("V100", (125, 0, 0, 15.7, 900, 16, 150)),
    ("T4", (65, 0, 0, 8.1, 320, 16, 16)),
    ("MI325X", (1307, 2615, 654, 163, 6000, 64, 448)),
    ("MI300X", (1307, 2615, 654, 163, 5300, 64, 448)),
    ("MI250X", (383, 0, 0, 47.9, 3277, 36, 300)),
)

# Of cards that are not in the table: 16-bit flops of a multiprocessor in a cycle.
_PER_CYCLE = {7.0: 1024, 7.5: 1024, 8.0: 2048, 8.6: 512, 8.9: 512, 9.0: 4096, 10.0: 8192, 12.0: 512}
_HALVES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Roofline:
    """
    What a device reaches.

    Attributes:
        name: Name of the device.
        flops: Floating-point operations in a second, by type. Types that are not in it are
            taken to be as fast as fp32.
        memory_bytes: Bytes that its memory reads or writes in a second.
        host_bytes: Bytes in a second from or to pinned memory of the CPU.
        link_bytes: Bytes in a second from or to another device.
        launch: Seconds to start an operator.
    """

    name: str
    flops: Mapping[torch.dtype, float]
    memory_bytes: float
    host_bytes: float
    link_bytes: float
    launch: float = _LAUNCH

    def rate(self, dtype: torch.dtype) -> float:
        """Return the floating-point operations in a second with arguments of a type."""
        return self.flops.get(dtype, self.flops[torch.float32])

    def offload_ms(self, nbytes: int) -> float:
        """Return the milliseconds to bring so many bytes to the CPU."""
        return nbytes / self.host_bytes * 1e3

    @classmethod
    def of(cls, device: torch.device | str) -> Roofline:
        """
        Return what a device can do.

        Args:
            device: A device of this machine, or the name of a card, such as ``"H100"``, to plan
                for another machine.

        Raises:
            ValueError: There is no such card in the table.
        """
        if isinstance(device, str):
            found = _card(device)
            if found is not None:
                return found
            device = _device(device)
        if device.type == "cpu":
            return _cpu()
        if device.type != "cuda":
            msg = (
                f"nothing is known of the speed of {device.type!r}. "
                f"Give the name of a card like it: {_known()}, or a Roofline of your own"
            )
            raise ValueError(msg)
        properties = torch.cuda.get_device_properties(device)
        return _card(properties.name) or _from_properties(properties)


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        msg = f"{text!r} is neither a device nor a card that is known: {_known()}"
        raise ValueError(msg) from error


def _known() -> str:
    return ", ".join(name for name, _ in _CARDS)


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]+[0-9]*[A-Z]*|[0-9]+[A-Z]*", name.upper())


def _card(device: str) -> Roofline | None:
    # "NVIDIA A100-SXM4-40GB" has all words of "A100 SXM 40GB", but for the 4.
    words = _words(re.sub(r"SXM[0-9]", "SXM", device.upper()))
    for name, figures in _CARDS:
        if set(_words(name)) <= set(words):
            half, eighth, tf32, single, memory, host, link = figures
            return _made(
                name,
                half * _T,
                eighth * _T,
                tf32 * _T,
                single * _T,
                memory * _G,
                host * _G,
                link * _G,
            )
    return None


def _made(
    name: str,
    half: float,
    eighth: float,
    tf32: float,
    single: float,
    memory: float,
    host: float,
    link: float,
) -> Roofline:
    fp32 = tf32 if tf32 and _uses_tf32() else single
    flops = dict.fromkeys(_HALVES, half) | {torch.float32: fp32}
    names = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8")
    for each in names:
        flops[getattr(torch, each)] = eighth or half
    reached = {dtype: flop * _FLOPS_REACHED for dtype, flop in flops.items()}
    return Roofline(
        name, reached, memory * _BYTES_REACHED, host * _BYTES_REACHED, link * _BYTES_REACHED
    )


def _uses_tf32() -> bool:
    matmul = torch.backends.cuda.matmul
    # Reading allow_tf32 raises where somebody set the precision by its new name.
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def _from_properties(properties: Any) -> Roofline:
    """Return what a card that is not in the table should reach, from its clocks and widths."""
    capability = properties.major + properties.minor / 10
    below = [each for each in _PER_CYCLE if each <= capability]
    per_cycle = _PER_CYCLE[max(below, default=min(_PER_CYCLE))]
    # In kHz; torch tells them from 2.6 on.
    clock = getattr(properties, "clock_rate", 1.5e6) * 1e3
    half = properties.multi_processor_count * clock * per_cycle
    lanes = getattr(properties, "memory_bus_width", 256) / 8
    memory = 2 * getattr(properties, "memory_clock_rate", 7e6) * 1e3 * lanes
    return _made(properties.name, half, 0, half / 2, half / 8, memory, 32 * _G, 32 * _G)


def _cpu() -> Roofline:
    """Return what a CPU should reach: about as much for each core as recent ones do."""
    single = 40 * _G * torch.get_num_threads()
    flops = {torch.float32: single, torch.float64: single / 2}
    return Roofline("cpu", flops, 20 * _G, 10 * _G, 5 * _G, launch=2e-6)
