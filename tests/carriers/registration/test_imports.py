"""The carriers of frameworks come with the import of their framework, in any order."""

from __future__ import annotations

import pytest
from registration_subjects import ALL, SHOWN, TORCH, answer, start

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
