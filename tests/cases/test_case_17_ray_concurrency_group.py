"""Case 17 (ray#34327, ray#46336): what `__init__` set is gone in another concurrency group."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

pytestmark = pytest.mark.ray

MODULE = """
import contextvars, threading
import ray, torch
import ctxcarry

variable = contextvars.ContextVar("case_17", default="LOST")
local = threading.local()
ctxcarry.register(ctxcarry.ThreadLocalCarrier(local, name="case_17.local"))

def seen():
    return variable.get(), getattr(local, "value", "LOST"), torch.is_grad_enabled()

class Actor:
    def __init__(self):
        variable.set("init")
        local.value = "init"
        torch.set_grad_enabled(False)

    def default(self):
        return seen()

    @ray.method(concurrency_group="io")
    def io(self):
        return seen()

@ctxcarry.carry_context
class Decorated(Actor):
    pass
"""

PROGRAM = """
import json
import ray
import ctxcarry.ray
from case_17_work import Actor, Decorated, variable

options = {"concurrency_groups": {"io": 1}, "num_cpus": 0}

def ask(way, remote, cls=Actor):
    actor = remote(**options)(cls).remote()
    nothing = ray.get([actor.default.remote(), actor.io.remote()])
    token = variable.set("driver")
    there = ray.get([actor.default.remote(), actor.io.remote()])
    variable.reset(token)
    print(json.dumps([way, nothing, there]))

ray.init(log_to_driver=False, logging_level="ERROR")
ask("plain", ray.remote)
ask("remote", ctxcarry.ray.remote)
ask("wrap", lambda **options: lambda cls: ctxcarry.ray.wrap(ray.remote(**options)(cls)))
ask("carry_context", ray.remote, Decorated)
ctxcarry.install("ray")
ask("install", ray.remote)
ctxcarry.uninstall("ray")
ask("uninstall", ray.remote)
ray.shutdown()
"""


@pytest.fixture(scope="module")
def told(told_by):
    """Run the program; give what both groups saw, with nothing set by the driver and with."""
    return {way: seen for way, *seen in told_by("case_17", MODULE, PROGRAM)}


@pytest.mark.parametrize("way", ["plain", "uninstall"])
def test_fault(told, way):
    """The io group has nothing of `__init__`, neither group anything of the driver."""
    lost = ["LOST", "LOST", True]
    for seen in told[way]:
        assert lost in seen
        assert "driver" not in [variable for variable, *_ in seen]
    assert lost == told[way][0][1] == told[way][1][1]


@pytest.mark.parametrize("way", ["remote", "wrap", "carry_context", "install"])
def test_cure(told, way):
    """Both groups have what `__init__` set, and the driver's value where it set one."""
    base, caller = ["init", "init", False], ["driver", "init", False]
    assert [[base, base], [caller, caller]] == told[way]
