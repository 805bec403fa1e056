"""
Case 13 (pytorch#191777, pytorch#186583, pytorch#186537): autograd's threads have no contexts.

At more than 60 backward passes one within the other the engine goes on on a thread
of its own, on the CPU too.
"""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import types

import pytest

pytest.importorskip("torch", minversion="2.12")  # whose configuration is in ContextVars

import torch
import torch._dynamo.config as dynamo

import ctxcarry

VARIABLE = contextvars.ContextVar("case 13", default="lost")
AMBIENT = types.ModuleType("ambient_of_case_13")
AMBIENT.local = threading.local()
sys.modules[AMBIENT.__name__] = AMBIENT
DEFAULT = dynamo.recompile_limit


def nest(function, depth, fn):
    """Call `fn` in the backward of `function`, within so many other backward passes."""
    with torch.enable_grad():
        function.apply(torch.ones(1, requires_grad=True), depth, fn).sum().backward()


class Deep(torch.autograd.Function):
    """A function whose backward starts a backward pass, so many times."""

    @staticmethod
    def forward(ctx, x, depth, fn):
        ctx.rest = depth - 1, fn
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        depth, fn = ctx.rest
        if depth:
            nest(ctx._forward_cls, depth, fn)
        else:
            fn()
        return grad, None, None


@ctxcarry.carry_context
class CarriedDeep(Deep):
    """The same, with the context of its forward in its backward."""


@pytest.fixture(autouse=True)
def _contexts():
    """Set a variable, a thread-local and a limit of the compiler, and carry the thread-local."""
    carrier = ctxcarry.ThreadLocalCarrier(f"{AMBIENT.__name__}:local", fields=("value",))
    ctxcarry.register(carrier)
    AMBIENT.local.value = "here"
    try:
        yield
    finally:
        del AMBIENT.local.value
        ctxcarry.unregister(carrier.name)


@pytest.fixture
def installed():
    """Install the boundary, and take it off again."""
    ctxcarry.install("autograd")
    yield
    ctxcarry.uninstall("autograd")


def seen():
    """Return what this thread has, and whether it is one of autograd's."""
    local = getattr(AMBIENT.local, "value", "lost")
    elsewhere = threading.current_thread() is not threading.main_thread()
    return VARIABLE.get(), local, dynamo.recompile_limit, elsewhere


def seen_deep(function, depth):
    """Set the variable and the limit; return what the innermost backward has."""
    found = []
    VARIABLE.set("here")
    dynamo.recompile_limit = 4096
    nest(function, depth, lambda: found.append(seen()))
    return found


LOST = ("lost", "lost", DEFAULT, True)
CARRIED = ("here", "here", 4096, True)


def test_fault():
    """A few passes stay on their thread; at more than 60 everything is lost."""
    assert [(*CARRIED[:3], False)] == seen_deep(Deep, 4)
    assert [LOST] == seen_deep(Deep, 71)


@pytest.mark.usefixtures("installed")
def test_cure():
    """Installed, everything is there, and on that thread not afterwards."""
    assert [CARRIED] == seen_deep(Deep, 71)
    ctxcarry.uninstall("autograd")
    assert [LOST] == seen_deep(Deep, 71)


def test_cure_of_one_function():
    """A function under ``carry_context`` has it without anything installed."""
    assert [CARRIED] == seen_deep(CarriedDeep, 71)


def hooked(hook):
    """Set the variable and the limit, and run `hook` where the first pass leaves its thread."""
    VARIABLE.set("here")
    dynamo.recompile_limit = 4096
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    nest(Deep, 61, y.sum().backward)


def test_fault_of_a_hook():
    """A hook on that thread has nothing either."""
    found = []
    hooked(lambda grad: found.append(seen()))
    assert [LOST] == found


def test_cure_of_one_hook():
    """A hook that is carried has everything without anything installed."""
    found = []
    ctxcarry.uninstall()  # what earlier tests have decorated
    try:
        hooked(ctxcarry.autograd.hook(lambda grad: found.append(seen())))
    finally:
        ctxcarry.uninstall()
    assert [CARRIED] == found


PROGRAM = """
import contextvars, threading, torch, ctxcarry

variable = contextvars.ContextVar("variable", default="lost")
ctxcarry.carry_context(print)
x = torch.ones(1, requires_grad=True)
x.register_hook(ctxcarry.autograd.hook(lambda grad: print(variable.get())))

def start():
    variable.set("here")
    x.sum().backward()

thread = threading.Thread(target=start)
thread.start()
thread.join()
"""


def test_cure_of_one_hook_where_a_function_was_decorated_before():
    """Such a hook has the context of its pass also in a program that decorates functions."""
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert ("here\n", "") == (done.stdout, done.stderr)
