"""When the carriers of frameworks register, and what happens where a private API is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ctxcarry
from ctxcarry._catalog import KNOWN, follow_imports

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


@pytest.fixture
def python():
    """Give a function that runs code in another process and returns what it told."""
    started = []

    def run(code, *flags):
        started.append(start(code, *flags))
        return answer(started[-1])

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_ctxcarry_imports_no_framework(python):
    """Importing ctxcarry and using it imports none of the frameworks whose contexts it knows."""
    found = python(
        """
import ctxcarry
heavy = "wrapt", "contextvars_extras", "importlib.metadata"
light = imported(*heavy)
snapshot = ctxcarry.capture()
snapshot.run(int); snapshot.explain(); only("triton.allocator"); only("torch.grad_mode")
with ctxcarry.executor(1) as pool, ctxcarry.suppress("torch.autocast"):
    pool.submit(int).result()
tell(light=light, names=names(), unavailable=ctxcarry.registry.unavailable(),
     frameworks=imported("torch", "triton", "spmd_types", "ray", "numpy"))
"""
    )
    assert [] == found["light"]
    assert ["contextvars"] == found["names"]
    assert [] == found["frameworks"]
    assert {} == found["unavailable"]


STEPS = """
before = names()
import triton
after_triton = names()
import torch
after_torch, not_yet = names(), imported("spmd_types")
import spmd_types
"""

SCRIPTS = {
    "after": SHOWN
    + "import ctxcarry"
    + STEPS
    + """
tell(before=before, after_triton=after_triton, after_torch=after_torch, not_yet=not_yet,
     names=names(), unavailable=ctxcarry.registry.unavailable(),
     own=[hasattr(sys.modules[m].__spec__.loader, "exec_module")
          and "exec_module" in vars(sys.modules[m].__spec__.loader)
          for m in ("torch", "triton", "spmd_types")])
""",
    "before": SHOWN
    + """
import triton, torch, spmd_types
import ctxcarry
tell(names=names(), unavailable=ctxcarry.registry.unavailable())
""",
    "torch alone": SHOWN
    + """
import torch
import ctxcarry
with torch.no_grad(), ctxcarry.executor(1) as pool:
    grad = pool.submit(torch.is_grad_enabled).result()
ctxcarry.capture().explain()
tell(names=names(), grad=grad, others=imported("triton", "spmd_types"))
""",
    "without the state of spmd_types": SHOWN
    + """
import spmd_types, spmd_types._state
del spmd_types._state._tls
import ctxcarry, torch
with torch.no_grad(), ctxcarry.executor(1) as pool:
    grad = pool.submit(torch.is_grad_enabled).result()
tell(names=names(), unavailable=ctxcarry.registry.unavailable(), grad=grad,
     only=only("spmd_types.state"))
""",
    "torch within torch": SHOWN
    + """
# As an extension of torch does that torch loads at the end of its own import.
import importlib.abc
class Eager(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch.autograd":
            sys.meta_path.remove(self)
            import ctxcarry
        return None
sys.meta_path.insert(0, Eager())
import torch
import ctxcarry
with torch.no_grad(), ctxcarry.executor(1) as pool:
    grad = pool.submit(torch.is_grad_enabled).result()
tell(names=names(), grad=grad)
""",
}


@pytest.fixture(scope="module")
def found():
    """Start all scripts that import torch at once, and give what each told."""
    started = {name: start(code) for name, code in SCRIPTS.items()}
    yield lambda name: answer(started[name])
    for process in started.values():
        process.kill()
        process.communicate()


ALL = {
    "contextvars",
    "torch.device_mesh",
    "triton.allocator",
    "triton.profile_allocator",
    "spmd_types.state",
    *TORCH,
}


def test_carriers_come_when_their_framework_is_imported(found):
    """Each framework that is imported after ctxcarry brings its carriers, and only its own."""
    told = found("after")
    assert ["contextvars"] == told["before"]
    assert {"contextvars", "triton.allocator", "triton.profile_allocator"} == set(
        told["after_triton"]
    )
    assert ALL - {"spmd_types.state"} == ALL & set(told["after_torch"])
    assert [] == told["not_yet"]
    assert ALL <= set(told["names"])
    assert not ALL & set(told["unavailable"])
    assert [] == told["warnings"]


def test_nothing_is_left_on_the_loaders_of_frameworks(found):
    """The loader of a framework is as it would be without ctxcarry once it has been used."""
    assert [False, False, False] == found("after")["own"]


def test_carriers_of_what_is_imported_already_are_there_at_once(found):
    """Frameworks that are imported before ctxcarry have their carriers from its import on."""
    told = found("before")
    assert ALL <= set(told["names"])
    assert (set(), []) == (ALL & set(told["unavailable"]), told["warnings"])


@pytest.mark.parametrize("order", ["after", "before"])
def test_inference_mode_comes_before_grad_mode(order, found):
    """Grad mode is applied after inference mode, which changes it, in either order of imports."""
    names = found(order)["names"]
    assert names.index("torch.inference_mode") < names.index("torch.grad_mode")


def test_using_torch_imports_no_other_framework(found):
    """Carrying torch's contexts imports neither Triton nor spmd_types."""
    told = found("torch alone")
    assert [] == told["others"]
    assert told["grad"] is False
    assert set(TORCH) < set(told["names"])


def test_ctxcarry_may_be_imported_in_the_midst_of_torch(found):
    """Torch's carriers are there after its import although ctxcarry was imported during it."""
    told = found("torch within torch")
    assert set(TORCH) < set(told["names"])
    assert told["grad"] is False


def test_spmd_types_without_its_state_is_told(found):
    """Without the private state of spmd_types its carrier is unavailable, and torch is carried."""
    told = found("without the state of spmd_types")
    assert "spmd_types.state" not in told["names"]
    assert "_tls" in told["unavailable"]["spmd_types.state"]
    assert told["unavailable"]["spmd_types.state"] in told["only"]
    assert told["grad"] is False


def test_looking_for_a_module_is_not_importing_it(python):
    """A find_spec for Triton registers nothing, and its import afterwards does."""
    told = python(
        """
import ctxcarry, importlib.util
importlib.util.find_spec("triton")
before, there = names(), imported("triton")
import triton
tell(before=before, there=there, after=names())
"""
    )
    assert (["contextvars"], []) == (told["before"], told["there"])
    assert "triton.allocator" in told["after"]


@pytest.mark.parametrize("first", ["ctxcarry", "wrapt"])
def test_another_post_import_hook_still_runs(first, python):
    """A wrapt hook on the same module runs too, whichever hook is first on the path."""
    told = python(
        f"""
import {first}
import wrapt
ran = []
wrapt.when_imported("triton")(lambda module: ran.append(module.__name__))
import ctxcarry
import triton
tell(ran=ran, names=names())
"""
    )
    assert ["triton"] == told["ran"]
    assert 1 == told["names"].count("triton.allocator")


# A Triton that is not as known

SABOTAGE = {
    "no allocator": "del A._allocator",
    "no module": "sys.modules['triton.runtime._allocation'] = None",
    "nothing to unset it with": "A._allocator = lambda *_: None; del A.NullAllocator",
    "a threading.local": "import threading; A._allocator = threading.local()",
    "something else": "A._allocator = None",
}


@pytest.mark.parametrize("change", SABOTAGE)
def test_unknown_triton_is_told_and_breaks_nothing(change, python):
    """Where Triton keeps its allocator otherwise, that is told, and everything else works."""
    pytest.importorskip("triton")
    told = python(
        SHOWN
        + f"""
import triton
import triton.runtime._allocation as A
{SABOTAGE[change]}
import contextvars
import ctxcarry
tenant = contextvars.ContextVar("tenant", default="none")
tenant.set("me")
with ctxcarry.executor(1) as pool:
    carried = pool.submit(tenant.get).result()
tell(names=names(), unavailable=ctxcarry.registry.unavailable(), carried=carried,
     only=only("triton.allocator"), explained=ctxcarry.capture().explain())
"""
    )
    assert "me" == told["carried"]
    assert "triton.allocator" not in told["names"]
    assert "triton.allocator" in told["unavailable"]
    assert told["unavailable"]["triton.allocator"] in told["only"]


def test_stub_in_place_of_triton_breaks_nothing(python):
    """A mere module called triton, as some packages make one, is told of as unavailable."""
    told = python(
        SHOWN
        + """
import types
sys.modules["triton"] = types.ModuleType("triton")
import ctxcarry
with ctxcarry.executor(1) as pool:
    ran = pool.submit(int).result()
tell(names=names(), ran=ran, unavailable=ctxcarry.registry.unavailable())
"""
    )
    assert (["contextvars"], 0) == (told["names"], told["ran"])
    assert {"triton.allocator", "triton.profile_allocator"} == set(told["unavailable"])


def test_unknown_triton_breaks_no_import_where_warnings_are_errors(python):
    """`import triton` works under -W error although a carrier of it cannot be registered."""
    pytest.importorskip("triton")
    told = python(
        """
import ctxcarry
ctxcarry.register(ctxcarry.ValueCarrier("triton.allocator", lambda: None, id, default=None))
with warnings.catch_warnings():
    warnings.simplefilter("error", ctxcarry.CtxCarryWarning)
    try:
        import triton
    except Exception as error:
        failure = repr(error)
    else:
        failure = ""
tell(failure=failure)
"""
    )
    assert "" == told["failure"]


@pytest.mark.parametrize(
    "ask",
    [
        "ctxcarry.carry_context(only='triton.allocator')(lambda: 0).bind()()",
        "ctxcarry.executor(1, policy=ctxcarry.policy(propagate='triton.allocator')).submit(int)",
    ],
    ids=["carry_context", "policy"],
)
def test_asking_for_an_unavailable_context_is_an_error(ask, python):
    """Who asks for a context by name is told that it cannot be carried, as by capture(only=)."""
    pytest.importorskip("triton")
    told = python(
        SHOWN
        + f"""
import triton.runtime._allocation as A
del A._allocator
import ctxcarry
try:
    {ask}
except ctxcarry.CarrierError as error:
    failure = str(error)
else:
    failure = "none"
tell(failure=failure, reason=ctxcarry.registry.unavailable()["triton.allocator"])
"""
    )
    assert told["reason"] in told["failure"]


# In this process, with a registry of its own


def followed():
    """Return a registry that follows the frameworks imported here, and what was warned about."""
    registry = ctxcarry.Registry(known=KNOWN)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        follow_imports(registry)
    return registry, [str(warning.message) for warning in caught]


def test_a_registry_may_follow_imports_of_its_own():
    """A registry made now has the carriers of what is imported now, once each."""
    registry, told = followed()
    assert [] == told
    assert len(registry.carriers()) == len({carrier.name for carrier in registry.carriers()})
    assert set(TORCH) < {carrier.name for carrier in registry.carriers()}


def test_every_context_is_carried_or_explained_once_its_framework_is_imported():
    """Each known context of an imported framework is a carrier or has a reason, and not both."""
    carried = {carrier.name for carrier in ctxcarry.carriers()}
    explained = set(ctxcarry.registry.unavailable())
    assert set() == carried & explained
    known = {name for name in KNOWN if name in ALL and name.split(".")[0] in sys.modules}
    assert set(TORCH) < known
    assert set() == known - carried - explained


OTHER_STATES = {
    "no _tls": lambda patch, module: patch.delattr(module, "_tls"),
    "a namespace": lambda patch, module: patch.setattr(module, "_tls", SimpleNamespace()),
    "a dict": lambda patch, module: patch.setattr(module, "_tls", {}),
    "no module": lambda patch, _: patch.setitem(sys.modules, "spmd_types._state", None),
}


@pytest.mark.parametrize("change", OTHER_STATES)
def test_unknown_spmd_types_is_told_and_breaks_nothing(change, monkeypatch):
    """Where spmd_types keeps its state otherwise, that is told, and everything else works."""
    pytest.importorskip("spmd_types")
    OTHER_STATES[change](monkeypatch, import_module("spmd_types._state"))
    registry, _ = followed()
    reason = registry.unavailable()["spmd_types.state"]
    with pytest.raises(ctxcarry.CarrierError) as caught:
        registry.capture(only="spmd_types.state")
    assert reason in str(caught.value)
    with torch.no_grad():
        snapshot = registry.capture()
    assert snapshot.run(torch.is_grad_enabled) is False


NEEDED = {
    "torch._C._set_grad_enabled": "torch.grad_mode",
    "torch.is_inference_mode_enabled": "torch.inference_mode",
    "torch.amp.autocast_mode.is_autocast_available": "torch.autocast",
    "torch.get_autocast_dtype": "torch.autocast",
    "torch.set_autocast_dtype": "torch.autocast",
    "torch.autocast_increment_nesting": "torch.autocast",
}


@pytest.mark.parametrize("path", NEEDED)
def test_torch_without_an_api_is_told_and_keeps_the_other_carriers(path, monkeypatch):
    """A torch that lacks what one carrier needs says so at once, and has the other carriers."""
    owner, _, attribute = path.rpartition(".")
    module = torch
    for part in owner.split(".")[1:]:
        module = getattr(module, part)
    with monkeypatch.context() as patched:
        patched.delattr(module, attribute)
        registry, told = followed()
    present = {carrier.name for carrier in registry.carriers()}
    name = NEEDED[path]
    assert set(TORCH) - {name} == set(TORCH) & present
    assert name in registry.unavailable()
    assert name in " ".join([*told, *registry.unavailable()])


def test_torch_without_the_quick_question_is_carried_all_the_same(monkeypatch, worker):
    """Autocast is carried in a torch that cannot be asked about all device types at once."""
    monkeypatch.delattr(torch._C, "_is_any_autocast_enabled")
    registry, told = followed()
    with torch.autocast("cpu", torch.float16):
        snapshot = registry.capture()
    found = worker.submit(snapshot.run, torch.get_autocast_dtype, "cpu").result()
    assert ([], torch.float16) == (told, found)
    assert worker.submit(snapshot.run, torch.is_autocast_enabled, "cpu").result()
    assert not registry.capture().run(torch.is_autocast_enabled, "cpu")


def test_a_carrier_that_cannot_be_registered_does_not_take_its_siblings_along():
    """A name that is taken already costs the other carriers of the same framework nothing."""
    registry = ctxcarry.Registry(known=KNOWN)
    own = registry.register(ctxcarry.ValueCarrier("torch.inference_mode", int, id, default=0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        follow_imports(registry)
    carriers = {carrier.name: carrier for carrier in registry.carriers()}
    assert own is carriers["torch.inference_mode"]
    assert {"torch.grad_mode", "torch.autocast"} <= set(carriers)
    assert not set(TORCH) & set(registry.unavailable())
    assert all("torch.inference_mode" in str(warning.message) for warning in caught)


def test_registering_in_another_thread_while_capturing_is_safe():
    """Snapshots can be taken and used while carriers are being registered in another thread."""
    registry = ctxcarry.Registry(known=KNOWN)
    stop, failures = threading.Event(), []

    def capture():
        while not stop.is_set():
            try:
                registry.capture().run(int)
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        follow_imports(registry)
    finally:
        stop.set()
        thread.join()
    assert [] == failures
