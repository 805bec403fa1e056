"""Real verl: its Ray worker group runs a method that needs what the worker's `__init__` set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import ctxcarry

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("spmd_types")
pytest.importorskip("ray")
# Found, not imported: verl sets up logging and Ray's environment for all of its process.
NEEDED = ("verl", "tensordict", "pyvers", "omegaconf", "transformers", "regex", "httpx2")
if any(find_spec(name) is None for name in NEEDED):
    pytest.skip(
        f"needs verl and what it imports: {', '.join(NEEDED)}",
        allow_module_level=True,
    )

pytestmark = pytest.mark.ray

MODULE = """
import torch
import verl
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register


class Trainer(Worker):
    def __init__(self):
        super().__init__()
        import spmd_types, triton
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        self.scope = spmd_types.set_current_mesh(mesh)
        self.scope.__enter__()
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))

    def step(self, batch):
        import spmd_types
        from triton.runtime import _allocation

        try:
            scratch = type(_allocation._allocator.get()(64, 16, None)).__name__
        except RuntimeError:
            scratch = "no allocator"
        try:
            spmd_types.assert_type(torch.ones(2), spmd_types.R)
            axes = list(spmd_types.current_mesh_all_names())
        except spmd_types.SpmdTypeError:
            axes = "no mesh"
        return self.rank, batch, scratch, axes, torch.is_grad_enabled()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update(self, batch):
        return self.step(batch)


class AsyncTrainer(Trainer):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def update(self, batch):
        return self.step(batch)
"""

PROGRAM = """
import json, sys

way = sys.argv[1]
if way == "install":
    import ctxcarry
    ctxcarry.install("ray")

import ray, torch
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import create_colocated_worker_cls_fused
from verl_trainers import AsyncTrainer, Trainer

remote = ray.remote
if way == "remote":
    import ctxcarry.ray
    remote = ctxcarry.ray.remote

def ask(kind, cls, prefix=None, **options):
    given = RayClassWithInitArgs(cls=remote(cls))
    if prefix is not None:
        given = create_colocated_worker_cls_fused({prefix: given})
    given.update_options(options)
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    whole = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=given, device_name="cpu")
    group = whole.spawn({prefix})[prefix] if prefix else whole
    found = [group.update(1)]
    with torch.no_grad():
        found.append(group.update(2))
    print(json.dumps([kind, *found]), flush=True)
    for worker in whole.workers:
        ray.kill(worker)
    for group in pool.pgs:
        ray.util.remove_placement_group(group)

ray.init(log_to_driver=False, logging_level="ERROR")
ask("threaded", Trainer, max_concurrency=2)
ask("async", AsyncTrainer)
ask("fused", Trainer, prefix="actor", max_concurrency=2)
ray.shutdown()
"""


def ask(directory, address, way):
    """Run the program; return what each kind of group saw, with grad mode on and off."""
    (directory / "verl_trainers.py").write_text(MODULE)
    program = directory / "program.py"
    program.write_text(PROGRAM)
    path = [str(Path(ctxcarry.__file__).parents[1]), str(directory), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        [sys.executable, str(program), way],
        env={
            **os.environ,
            "RAY_ADDRESS": address,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert 0 == done.returncode, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return {kind: seen for kind, *seen in map(json.loads, lines)}


def both(batch, *seen):
    """Return what the two ranks are to have seen."""
    return [[rank, batch, *seen] for rank in range(2)]


def test_fault(tmp_path, ray_address):
    """A group as it is loses the allocator and the mesh, and the driver's grad mode."""
    told = ask(tmp_path, ray_address, "plain")
    lost = "no allocator", "no mesh", True
    assert [both(1, *lost), both(2, *lost)] == told["threaded"] == told["fused"]
    assert {"no allocator"} == {seen[2] for ranks in told["async"] for seen in ranks}


@pytest.mark.parametrize("way", ["install", "remote"])
def test_cure(tmp_path, ray_address, way):
    """The group has both, and grad mode as it is at the call."""
    told = ask(tmp_path, ray_address, way)
    there = "Tensor", ["tp"]
    carried = [both(1, *there, True), both(2, *there, False)]
    assert carried == told["threaded"] == told["async"]
    if way == "install":
        assert carried == told["fused"]
    else:  # verl makes that actor itself, so the driver's context stays behind
        assert [both(1, *there, True), both(2, *there, True)] == told["fused"]
