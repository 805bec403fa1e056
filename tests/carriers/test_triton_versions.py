"""Triton's allocators in each version of Triton, in subprocesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctxcarry

pytest.importorskip("triton")
pytest.importorskip("triton.runtime._allocation")

NAME, PROFILE = "triton.allocator", "triton.profile_allocator"

VARIABLE = "CTXCARRY_TRITON_SITES"
SITES = [site for site in os.environ.get(VARIABLE, "").split(os.pathsep) if site]
REPOSITORY = str(Path(ctxcarry.__file__).parents[1])

SCRIPT = r"""
import json, sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

class Buffers:
    def __init__(self, name):
        self.name = name
    def __call__(self, size, alignment, stream):
        return self.name

def launched(field):
    holder = getattr(_allocation, field, None)
    if holder is None:
        return "absent"
    if hasattr(holder, "get"):  # as the launcher of Triton 3.5 and newer does
        holder = holder.get()
    try:
        return holder(64, 16, None)
    except RuntimeError as error:
        return "none" if "no allocator was set" in str(error) else str(error)

def both():
    return launched("_allocator"), launched("_profile_allocator")

def set_both(name):
    if hasattr(triton, "set_allocator"):
        triton.set_allocator(Buffers(name))
    if hasattr(_allocation, "set_profile_allocator"):
        _allocation.set_profile_allocator(Buffers(name))

def library():
    set_both("library")
    return both()

def only(name):
    try:
        return repr(ctxcarry.capture(only=name))
    except ctxcarry.CarrierError as error:
        return "CarrierError: " + str(error)

if sys.argv[1] == "ctxcarry":
    import ctxcarry
import triton
try:
    _allocation = import_module("triton.runtime._allocation")
except ModuleNotFoundError:
    _allocation = None
before = both()
if sys.argv[1] == "triton":
    set_both("early")  # must not be taken for what "not set" means
    import ctxcarry
names = ["triton.allocator", "triton.profile_allocator"]
found = {"version": triton.__version__, "file": triton.__file__, "before": before}
set_both("user")
carriers = {c.name: c for c in ctxcarry.carriers()}
registered = [carriers[name] for name in names if name in carriers]
found["registered"] = {c.name: getattr(c, "process_wide", False) for c in registered}
found["unavailable"] = ctxcarry.registry.unavailable()
found["only"] = {n: only(n) for n in names}
with ThreadPoolExecutor(1) as plain, ctxcarry.executor(1) as carrying:
    found["plain"] = plain.submit(both).result()
    found["carried"] = carrying.submit(both).result()
    found["after"] = ThreadPoolExecutor.submit(carrying, both).result()
    with ctxcarry.suppress(*names):
        found["suppressed"] = carrying.submit(both).result()
    with ctxcarry.policy(clear=names):
        found["cleared"] = carrying.submit(both).result()
    found["library"] = carrying.submit(library).result()
    found["after library"] = both()
    set_both("user")
for name, carrier in carriers.items():
    if name in names:
        token = carrier.apply(ctxcarry.MISSING)
        unset = both()[names.index(name)]
        carrier.undo(token)
        found[name + " unset"] = unset, both()[names.index(name)]
print(json.dumps(found))
"""

ABSENT, CONTEXTVAR, GLOBAL = "absent", "ContextVar", "process-wide"


def kinds(version):
    """Return where a version of Triton keeps its allocator and its profile allocator."""
    major, minor = map(int, version.split(".")[:2])
    if (major, minor) <= (3, 2):
        return ABSENT, ABSENT
    if (major, minor) <= (3, 4):
        return GLOBAL, ABSENT
    return CONTEXTVAR, CONTEXTVAR if (major, minor) == (3, 5) else GLOBAL


EXPECTED = {
    # what is found: (before, plain, carried, after, suppressed, cleared, library, after library)
    ABSENT: ("absent",) * 8,
    CONTEXTVAR: ("none", "none", "user", "none", "none", "none", "library", "user"),
    GLOBAL: ("none", "user", "user", "user", "user", "user", "library", "library"),
}


def run(site, order):
    """Run the script with the Triton of `site`, or that of this environment for None."""
    path = [REPOSITORY] if site is None else [site, REPOSITORY]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *order],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "" == done.stderr  # where ctxcarry's warnings would be
    return json.loads(done.stdout)


def check(found):
    """Check what the script found against the table of `ctxcarry._carriers.triton`."""
    keys = ("before", "plain", "carried", "after", "suppressed", "cleared", "library")
    keys = (*keys, "after library")
    by_name = dict(zip((NAME, PROFILE), kinds(found["version"])))
    for index, (name, kind) in enumerate(by_name.items()):
        assert EXPECTED[kind] == tuple(found[key][index] for key in keys), name
        if kind == ABSENT:
            assert name not in found["registered"]
            assert found["version"] in found["unavailable"][name]
            assert found["unavailable"][name] in found["only"][name]
            assert found["only"][name].startswith("CarrierError: ")
        else:
            assert (kind == GLOBAL) is found["registered"][name]
            assert name not in found["unavailable"]
            assert found["only"][name].startswith("<Snapshot ")
            assert ["none", "user"] == found[f"{name} unset"]


ORDERS = [("ctxcarry", "triton"), ("triton", "ctxcarry")]


@pytest.mark.parametrize("order", ORDERS, ids=" then ".join)
def test_the_triton_of_this_environment_is_carried_as_the_table_says(order):
    """Allocators are carried, left alone or unavailable as the table by version says."""
    check(run(None, order))


@pytest.mark.parametrize("order", ORDERS, ids=" then ".join)
@pytest.mark.parametrize("site", SITES or [None], ids=lambda site: Path(site or "none").name)
def test_another_triton_is_carried_as_the_table_says(site, order):
    """Each other Triton is carried, left alone or unavailable as the table by version says."""
    if site is None:
        pytest.skip(
            f"{VARIABLE} is not set: it lists, separated by {os.pathsep!r}, directories made by "
            "`pip install --no-deps --target DIR triton==X`"
        )
    found = run(site, order)
    assert Path(site) in Path(found["file"]).parents
    check(found)
