"""Each other version of spmd_types that CTXCARRY_SPMD_SITES names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctxcarry

spmd = pytest.importorskip("spmd_types")

from spmd_state_subjects import (  # noqa: E402
    NAME,
)

VARIABLE = "CTXCARRY_SPMD_SITES"
SITES = [site for site in os.environ.get(VARIABLE, "").split(os.pathsep) if site]
REPOSITORY = str(Path(ctxcarry.__file__).parents[1])

SCRIPT = r"""
import json, threading
from concurrent.futures import ThreadPoolExecutor
import ctxcarry
import torch
import spmd_types as spmd
from importlib.metadata import version
from spmd_types import _state
from spmd_types.checker import no_typecheck, typecheck
from torch.distributed.device_mesh import init_device_mesh
from torch.overrides import _get_current_function_mode_stack
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
tensors = {"untyped": torch.ones(2)}
with spmd.set_current_mesh(mesh):
    for kind in "RPV":
        tensors[kind] = torch.ones(2)
        spmd.assert_type(tensors[kind], {"dp": spmd.R, "tp": getattr(spmd, kind)})

def outcome(fn, *args):
    try:
        fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0]
    return "ok"

def everything():
    return [
        sorted(spmd.current_mesh_names() or ()),
        outcome(spmd.assert_type, torch.ones(2), spmd.R),
        outcome(torch.mul, tensors["P"], tensors["P"]),
        outcome(torch.mul, tensors["R"], tensors["untyped"]),
        outcome(torch.mul, tensors["V"], tensors["V"]),
        _state._current_mode() is not None,
        len(_get_current_function_mode_stack()),
    ]

def pausing(barrier):
    with no_typecheck():
        barrier.wait()
        found = outcome(torch.mul, tensors["P"], tensors["P"])
        barrier.wait()
    return found

found = {
    "file": spmd.__file__,
    "version": version("spmd-types"),
    "registered": [c.name for c in ctxcarry.carriers() if c.name.startswith("spmd")],
    "unavailable": ctxcarry.registry.unavailable(),
}
with ThreadPoolExecutor(1) as plain, ctxcarry.executor(1) as carrying:
    found["nothing"] = everything(), carrying.submit(everything).result()
    for name, options in [
        ("strict", {}), ("permissive", {"strict_mode": "permissive"}), ("global", {"local": False})
    ]:
        with spmd.set_current_mesh(mesh), typecheck(**options):
            found[name] = everything(), carrying.submit(everything).result()
            found["plain"] = everything(), plain.submit(everything).result()
    with spmd.set_current_mesh(mesh):
        found["mesh"] = everything(), carrying.submit(everything).result()
    with spmd.set_current_mesh(mesh), typecheck():
        barrier = threading.Barrier(2, timeout=60)
        future = carrying.submit(pausing, barrier)
        barrier.wait()
        here = outcome(torch.mul, tensors["P"], tensors["P"])
        barrier.wait()
        found["pausing"] = here, future.result()
    found["after"] = everything(), ThreadPoolExecutor.submit(carrying, everything).result()
torch.distributed.destroy_process_group()
print(json.dumps(found))
"""


def _script(site):
    path = [REPOSITORY] if site is None else [site, REPOSITORY]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def running():
    """Start the script with every site at once, as importing torch is most of it."""
    started = {site: _script(site) for site in [None, *SITES]}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "site",
    [None, *(SITES or ["none"])],
    ids=lambda site: "this" if site is None else Path(site).name,
)
def test_each_version_is_carried(site, running):
    """With each spmd_types meshes and checking are as inline, and pausing is per thread."""
    if site == "none":
        pytest.skip(
            f"{VARIABLE} is not set: it lists, separated by {os.pathsep!r}, directories made by "
            "`pip install --no-deps --target DIR spmd-types==X`"
        )
    out, err = running[site].communicate()
    assert 0 == running[site].returncode, err
    assert "" == err  # where ctxcarry's warnings would be
    found = json.loads(out)
    if site is not None:
        assert Path(site) in Path(found["file"]).parents
    assert [NAME] == found["registered"]
    assert NAME not in found["unavailable"]
    for scope in ("nothing", "strict", "permissive", "global", "mesh", "after"):
        inline, carried = found[scope]
        assert inline == carried, scope
    inline, plain = found["plain"]
    assert (["dp", "tp"], []) == (inline[0], plain[0])
    assert "SpmdTypeError" == inline[2].split(":")[0]
    assert "ok" == plain[2]
    here, paused = found["pausing"]
    assert ("SpmdTypeError", "ok") == (here.split(":")[0], paused)
