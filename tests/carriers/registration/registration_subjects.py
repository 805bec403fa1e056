"""What several tests of when carriers register use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ctxcarry

REPOSITORY = str(Path(ctxcarry.__file__).parents[1])
TORCH = ["torch.inference_mode", "torch.grad_mode", "torch.autocast"]


def start(code, *flags):
    """Start Python with `code`, which has a function to tell what it found as JSON."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", PREAMBLE + code],
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process):
    """Return what the process told, or fail with what it complained of."""
    out, err = process.communicate()
    assert 0 == process.returncode, err
    return json.loads(out)


PREAMBLE = """
import json, sys, warnings
caught = []
def note(message, category, *rest):
    caught.append(f"{category.__name__}: {message}")

def tell(**found):
    print(json.dumps({**found, "warnings": caught}))

def names():
    return [carrier.name for carrier in sys.modules["ctxcarry"].carriers()]

def imported(*modules):
    return [module for module in modules if module in sys.modules]

def only(name):
    import ctxcarry
    try:
        return "captured: " + repr(ctxcarry.capture(only=name))
    except ctxcarry.CarrierError as error:
        return str(error)
"""

SHOWN = "warnings.showwarning = note\n"

ALL = {
    "contextvars",
    "torch.device_mesh",
    "triton.allocator",
    "triton.profile_allocator",
    "spmd_types.state",
    *TORCH,
}
