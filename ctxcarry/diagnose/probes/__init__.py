"""
Probes: for each carrier, how its context is set for real and what code then sees.

A maker is a context manager that yields a `Probe`; it sets up, and takes down
again, what the probe needs. To have ``doctor`` show one more carrier, write a
maker in the file of its framework and name it here.
"""

from __future__ import annotations

from typing import Final

from ctxcarry.diagnose.probes import (
    generic,
    spmd_types,
    torch,
    torch_cuda,
    torch_groups,
    torch_modes,
    torchtitan,
    triton,
)
from ctxcarry.diagnose.probes._probe import CannotProbeError, Maker, Probe, ProbeError, Read

__all__ = ("GENERIC", "PROBES", "CannotProbeError", "Maker", "Probe", "ProbeError", "Read")

PROBES: Final[dict[str, Maker]] = {
    "contextvars": generic.contextvars,
    "process_groups": generic.process_groups,
    "torch.inference_mode": torch.inference_mode,
    "torch.grad_mode": torch.grad_mode,
    "torch.autocast": torch.autocast,
    "torch.default_device": torch.default_device,
    "torch.function_modes": torch_modes.function_modes,
    "torch.dispatch_modes": torch_modes.dispatch_modes,
    "torch.saved_tensors_hooks": torch.saved_tensors_hooks,
    "torch.multithreading": torch.multithreading,
    "torch.cuda_device": torch_cuda.device,
    "torch.cuda_stream": torch_cuda.stream,
    "torch.device_mesh": torch_groups.device_mesh,
    "torch.process_group": torch_groups.process_group,
    "triton.allocator": triton.allocator,
    "triton.profile_allocator": triton.profile_allocator,
    "spmd_types.state": spmd_types.state,
    "torchtitan.mesh": torchtitan.mesh,
}
"""The maker of the probe for each carrier of the catalog, by the carrier's name."""

GENERIC: Final[dict[str, Maker]] = {
    "ContextVarCarrier": generic.context_var_carrier,
    "ThreadLocalCarrier": generic.thread_local_carrier,
    "ValueCarrier": generic.value_carrier,
    "ContextVarsRegistryCarrier": generic.context_vars_registry_carrier,
}
"""Makers that also register a carrier of this kind, on a throwaway context, while they run."""
