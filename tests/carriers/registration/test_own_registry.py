"""A registry of one's own that follows imports, and where a private API is missing."""

from __future__ import annotations

import sys
import threading
import warnings
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from registration_subjects import ALL, TORCH

import ctxcarry
from ctxcarry._catalog import KNOWN, follow_imports


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
