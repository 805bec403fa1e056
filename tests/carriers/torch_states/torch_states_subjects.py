"""What several tests of grad mode, inference mode and autocast use."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch

ONES = torch.ones(2, 4)
TORCH = ("torch.inference_mode", "torch.grad_mode", "torch.autocast")
ON_CPU = ("cpu", torch.bfloat16)


@contextmanager
def set_autocast(device_type, dtype):
    """Enable autocast by its setters, as only those reach devices that are not there."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_dtype(device_type, dtype)
    torch.set_autocast_enabled(device_type, True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


def autocast(*args, **kwargs):
    """Return a function that makes an autocast region."""
    return lambda: torch.autocast(*args, **kwargs)


AMBIENT = {
    "nothing": (),
    "no_grad": (torch.no_grad,),
    "enable_grad in no_grad": (torch.no_grad, torch.enable_grad),
    "inference_mode": (torch.inference_mode,),
    "enable_grad in inference_mode": (torch.inference_mode, torch.enable_grad),
    "no inference_mode in inference_mode": (
        torch.inference_mode,
        lambda: torch.inference_mode(False),
    ),
    "no_grad in no inference_mode in inference_mode": (
        torch.inference_mode,
        lambda: torch.inference_mode(False),
        torch.no_grad,
    ),
    "inference_mode in no_grad": (torch.no_grad, torch.inference_mode),
    "bfloat16": (autocast(*ON_CPU),),
    "float16": (autocast("cpu", torch.float16),),
    "without weight cache": (autocast(*ON_CPU, cache_enabled=False),),
    "three deep": (autocast(*ON_CPU), autocast(*ON_CPU), autocast("cpu", torch.float16)),
    "cuda without CUDA": (lambda: set_autocast("cuda", torch.bfloat16),),
    "several device types": (
        autocast(*ON_CPU),
        lambda: set_autocast("cuda", torch.float16),
        lambda: set_autocast("xpu", torch.bfloat16),
        lambda: set_autocast("hpu", torch.float16),
    ),
    "autocast in inference_mode": (torch.inference_mode, autocast(*ON_CPU)),
    "inference_mode in autocast": (autocast(*ON_CPU), torch.inference_mode),
    "no_grad in autocast": (autocast(*ON_CPU), torch.no_grad),
    "off in autocast": (autocast("cpu", torch.float16), autocast("cpu", enabled=False)),
    "cpu off, cuda on": (
        lambda: set_autocast("cuda", torch.bfloat16),
        autocast("cpu", torch.float16),
        autocast("cpu", enabled=False),
    ),
    "off without weight cache": (autocast("cpu", enabled=False, cache_enabled=False),),
}


def entered(managers):
    """Enter all of `managers`, the first outermost."""
    stack = ExitStack()
    for manager in managers:
        stack.enter_context(manager())
    return stack


STEPPED = [
    "no_grad",
    "inference_mode",
    "enable_grad in inference_mode",
    "bfloat16",
    "off in autocast",
]
