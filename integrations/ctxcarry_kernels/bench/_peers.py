"""
Other fused kernels, loaded without what their packages import.

A package that is installed with its requirements and one that is only unpacked on the
path are the same here: the ``__init__`` of packages that import a whole framework is left
out.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from torch.distributed import ProcessGroup

    Call = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]

__all__ = ("PEERS", "UnavailableError", "compiled", "cut_cross_entropy", "liger", "verl")


class UnavailableError(Exception):
    """A kernel that cannot be measured here, and why."""


def verl(group: ProcessGroup | None = None) -> Call:
    """
    Load verl's Triton kernel.

    Args:
        group: Whose ranks each have an equal part of the words.

    Raises:
        UnavailableError: If it is not installed, or there is no CUDA device.
    """
    place = _place("verl")
    _needs_cuda()
    device = ModuleType("verl.utils.device")
    vars(device).update(
        get_device_capability=torch.cuda.get_device_capability,
        get_device_name=lambda: "cuda",
        is_cuda_available=True,
        get_torch_device=lambda: torch.cuda,
    )
    with _without_init({"verl": place, "verl.utils": f"{place}/utils"}, device):
        kernel: Any = import_module("verl.utils.kernel.linear_cross_entropy")
        import_module("verl.utils.kernel.kernels")
    import_module("triton").set_allocator(_scratch)

    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logprobs, entropy = kernel.linear_cross_entropy(hidden, weight, labels, 1.0, "none", group)
        return logprobs, entropy

    return call


def liger() -> Call:
    """
    Load Liger's scaled cross-entropy for Hopper, whose entropy is bf16.

    Raises:
        UnavailableError: If it is not installed, or there is no CUDA device.
    """
    _place("liger_kernel")
    _needs_cuda()
    ops: Any = import_module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
    function = ops.LigerFusedLinearScaledCrossEntropyFunction

    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        nll, entropy = function.apply(hidden, weight, labels, 1.0, -100, 1, True)
        return -nll, entropy

    return call


def cut_cross_entropy() -> Call:
    """
    Load Apple's cut cross-entropy with exact gradients; it has no entropy.

    Raises:
        UnavailableError: If it is not installed, or there is no CUDA device.
    """
    _place("cut_cross_entropy")
    _needs_cuda()
    package: Any = import_module("cut_cross_entropy")

    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, None]:
        nll = package.linear_cross_entropy(
            hidden, weight, labels, reduction="none", filter_eps=None
        )
        return -nll, None

    return call


def compiled() -> Call:
    """Return the plain formula under torch.compile, which keeps the logits."""
    torch.compiler.reset()

    @torch.compile(dynamic=False)
    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logp = torch.log_softmax((hidden @ weight.t()).float(), -1)
        entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(1, labels[:, None])[:, 0], entropy

    made: Call = call
    return made


PEERS: dict[str, Callable[[], Call]] = {
    "Liger scaled, SM90": liger,
    "verl Triton": verl,
    "CCE exact (no entropy)": cut_cross_entropy,
    "torch.compile of the formula": compiled,
}
"""What loads each: it raises UnavailableError, or anything else, where that fails."""


def _needs_cuda() -> None:
    if not torch.cuda.is_available():
        msg = "needs a CUDA device"
        raise UnavailableError(msg)


def _place(package: str) -> str:
    """Return the folder of a package, without importing it."""
    spec = None if sys.modules.get(package) is not None else find_spec(package)
    known = getattr(sys.modules.get(package), "__path__", None)
    places: list[str] = list(known or (spec.submodule_search_locations if spec else None) or ())
    if not places:
        msg = f"{package} is not installed"
        raise UnavailableError(msg)
    return places[0]


@contextmanager
def _without_init(packages: dict[str, str], *modules: ModuleType) -> Iterator[None]:
    """Import from packages as if their ``__init__`` were empty, with `modules` in place."""
    stubs = list(modules)
    for name, place in packages.items():
        stub = ModuleType(name)
        stub.__path__ = [place]
        stubs.append(stub)
    before = {stub.__name__: sys.modules.get(stub.__name__) for stub in stubs}
    sys.modules.update({stub.__name__: stub for stub in stubs})
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _scratch(size: int, _alignment: int, _stream: int | None) -> Tensor:
    return torch.empty(size, device="cuda", dtype=torch.int8)
