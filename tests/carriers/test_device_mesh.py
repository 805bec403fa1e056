"""The `with device_mesh:` stack of real torch, over a process group of ranks that do not exist."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
import torch.distributed.device_mesh as module
from torch.distributed.device_mesh import init_device_mesh

import ctxcarry
from ctxcarry._carriers import device_mesh as source
from ctxcarry._catalog import KNOWN, follow_imports

NAME = "torch.device_mesh"


@pytest.fixture
def meshes(world):
    """Make two meshes of eight ranks."""
    return (
        init_device_mesh("cpu", (8,), mesh_dim_names=("dp",)),
        init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "tp")),
    )


def current():
    """Return the mesh that code without a mesh argument would use, or None."""
    try:
        return module._mesh_resources.get_current_mesh()
    except RuntimeError:
        return None


def stack():
    """Return the stack itself."""
    return module._mesh_resources.mesh_stack


def test_mesh_is_lost_in_a_plain_pool(meshes, worker):
    """Without ctxcarry the worker has no mesh, which is the fault (pytorch#159014)."""
    with meshes[0]:
        assert (meshes[0], None) == (current(), worker.submit(current).result())


def test_mesh_is_carried(meshes, carrying):
    """A task sees the very mesh that its submitter had entered, and the next task none."""
    with meshes[0]:
        future = carrying.submit(current)
    assert meshes[0] is future.result()
    assert carrying.submit(current).result() is None


def test_nested_meshes_are_carried_in_order(meshes, carrying):
    """All meshes that the submitter had entered are there, the innermost last."""
    with meshes[0], meshes[1]:
        inner = carrying.submit(lambda: list(stack()))
    with meshes[1], meshes[0]:
        outer = carrying.submit(lambda: list(stack()))
    assert list(meshes) == inner.result()
    assert list(reversed(meshes)) == outer.result()


def test_task_leaves_a_carried_mesh_for_one_of_its_own(meshes, carrying):
    """A task may enter and leave a mesh of its own within the carried one."""

    def work():
        with meshes[1]:
            inside = current()
        return inside, current()

    with meshes[0]:
        future = carrying.submit(work)
    assert (meshes[1], meshes[0]) == future.result()


def test_submitters_stack_is_not_shared_with_the_task(meshes, carrying, barrier):
    """Neither thread sees what the other pushes, although both run at once."""

    def work():
        with meshes[1]:
            barrier.wait()
            barrier.wait()
            return list(stack())

    own = stack()
    with meshes[0]:
        future = carrying.submit(work)
        with meshes[0]:
            barrier.wait()
            here = list(stack())
            barrier.wait()
            assert own is stack()
    assert [meshes[0], meshes[0]] == here
    assert [meshes[0], meshes[1]] == future.result()
    assert own is stack()
    assert [] == own


def test_undo_restores_the_very_list_of_the_worker(meshes, worker):
    """Code in the worker that holds on to its stack finds it as it was, the same object."""
    with meshes[0]:
        snapshot = ctxcarry.capture()

    def work():
        with meshes[1]:
            before = stack()
            inside = snapshot.run(lambda: list(stack()))
            with snapshot.active():
                block = list(stack())
            return before is stack(), list(before), inside, block

    assert (True, [meshes[1]], [meshes[0]], [meshes[0]]) == worker.submit(work).result()


def test_task_that_raises_or_leaves_a_mesh_entered_does_not_keep_it(meshes, carrying):
    """The worker has no mesh after a task that raised and left one entered."""

    def careless():
        meshes[1].__enter__()
        raise KeyError

    with meshes[0], pytest.raises(KeyError):
        carrying.submit(careless).result()
    assert [] == carrying.submit(lambda: list(stack())).result()


def test_no_mesh_is_a_state_too(meshes, worker):
    """A task handed over outside of any mesh sees none, in a thread that has entered one."""
    bound = ctxcarry.bind(current)

    def work():
        with meshes[0]:
            return bound(), current()

    assert (None, meshes[0]) == worker.submit(work).result()


def test_cleared_mesh_is_none_in_the_worker(meshes, worker):
    """A cleared mesh is gone where the work runs, whatever both threads have entered."""
    with ctxcarry.policy(clear=NAME), meshes[0]:
        bound = ctxcarry.bind(current)

    def work():
        with meshes[1]:
            return bound(), current()

    assert (None, meshes[1]) == worker.submit(work).result()


def test_suppressed_mesh_is_the_workers_own(meshes, worker):
    """A suppressed mesh is neither captured nor applied."""
    with ctxcarry.suppress(NAME), meshes[0]:
        bound = ctxcarry.bind(current)

    def work():
        with meshes[1]:
            return bound()

    assert meshes[1] is worker.submit(work).result()


def test_snapshot_over_a_base_takes_its_mesh(meshes, worker):
    """The base's mesh stands in where the snapshot has none, and only there."""
    with meshes[0]:
        base = ctxcarry.capture()
    with meshes[1]:
        other = ctxcarry.capture()
    assert meshes[0] is worker.submit(ctxcarry.capture().over(base).run, current).result()
    assert meshes[1] is worker.submit(other.over(base).run, current).result()


def test_equal_snapshot_keeps_the_very_stack(meshes):
    """A snapshot that equals what is active does not replace the stack."""
    with meshes[0]:
        assert stack() is ctxcarry.capture().run(stack)


def test_mesh_held_across_an_await_is_the_coroutines_own(meshes):
    """A mesh that a carried coroutine holds is not seen by others, and is still there after."""

    @ctxcarry.carry_context
    async def hold():
        with meshes[0]:
            before = current()
            await asyncio.sleep(0)
            after = current()
        return before, after, current()

    async def main():
        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        return current(), await task

    others, found = asyncio.run(main())
    assert others is None
    assert (meshes[0], meshes[0], None) == found


def test_generator_holding_a_mesh_moves_to_another_thread(meshes, worker):
    """A generator paused within a mesh has it on whichever thread resumes it, and may leave it."""

    @ctxcarry.carry_context
    def generate():
        with meshes[0]:
            yield current()
            yield current()
        yield current()

    generator = generate()
    found = [next(generator), worker.submit(next, generator).result(), next(generator)]
    assert [meshes[0], meshes[0], None] == found
    assert [] == stack()


def test_consumer_keeps_the_mesh_it_entered_while_a_generator_was_paused(meshes):
    """A step of a generator that holds a mesh does not undo what its consumer entered."""

    @ctxcarry.carry_context
    def generate():
        with meshes[0]:
            yield
            yield

    generator = generate()
    next(generator)
    with meshes[1]:
        next(generator)
        assert [meshes[1]] == list(stack())
    assert [] == stack()
    generator.close()
    assert [] == stack()


def test_explain_names_the_dimensions(meshes):
    """Explain tells names, shape and depth of the captured meshes."""
    with meshes[0], meshes[1]:
        text = ctxcarry.capture().explain()
    assert "torch.device_mesh: captured: ('pp', 'tp') of shape (2, 4), depth 2" in text
    assert "torch.device_mesh: not set" in ctxcarry.capture().explain()


# Torch without the private API


def forget(monkeypatch):
    """Take away what torch calls the stack of meshes."""
    monkeypatch.delattr(module, "_mesh_resources")


def replace(monkeypatch):
    """Put something else in the place of the stack of meshes."""
    monkeypatch.setattr(module, "_mesh_resources", object())


def rename(monkeypatch):
    """Have the stack of meshes under another name."""

    class Env(threading.local):
        def __init__(self):
            self.meshes = []

    monkeypatch.setattr(module, "_mesh_resources", Env())


@pytest.mark.parametrize("change", [forget, replace, rename])
def test_other_torch_makes_the_mesh_unavailable_with_a_reason(change, monkeypatch):
    """Where torch keeps meshes otherwise, asking for them says so, and the rest is carried."""
    change(monkeypatch)
    assert [NAME] == list(source.unavailable())
    registry = ctxcarry.Registry(known=KNOWN)
    follow_imports(registry)
    assert "_mesh_resources" in registry.unavailable()[NAME]
    with pytest.raises(ctxcarry.CarrierError, match="_mesh_resources") as caught:
        registry.capture(only=NAME)
    assert (NAME, "capture") == (caught.value.carrier, caught.value.stage)
    assert NAME not in {carrier.name for carrier in registry.carriers()}
    with torch.no_grad():
        snapshot = registry.capture()
    assert snapshot.run(torch.is_grad_enabled) is False
    assert NAME not in snapshot.explain()


def test_mesh_is_available_in_this_torch():
    """The torch that these tests run with has what the carrier needs."""
    assert {} == source.unavailable()
    assert NAME in {carrier.name for carrier in ctxcarry.carriers()}
