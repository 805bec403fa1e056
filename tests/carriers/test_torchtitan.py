"""The meshes of real TorchTitan (without its dependencies) in other threads."""

from __future__ import annotations

import pytest

pytest.importorskip("torchtitan.distributed.spmd_types")

import spmd_types as spmd
import torchtitan.distributed.spmd_types as titan
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.distributed import utils

import ctxcarry

NAME = "torchtitan.mesh"


@pytest.fixture(autouse=True)
def _backend():
    """Choose the backend for which TorchTitan has meshes."""
    before = utils.get_spmd_backend()
    utils.set_spmd_backend("spmd_types")
    yield
    utils.set_spmd_backend(before)
    assert titan.current_spmd_mesh() is None
    vars(titan._MESH_TLS).clear()


@pytest.fixture
def meshes(world):
    """Make a dense and a sparse mesh of eight ranks."""
    return (
        init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp")),
        init_device_mesh("cpu", (2, 4), mesh_dim_names=("efsdp", "ep")),
    )


def sizes():
    """Return the current mesh, and the sizes that TorchTitan's code works with."""
    size = titan.spmd_mesh_size
    return titan.current_spmd_mesh(), size("tp"), size("ep")


def registered():
    """Return the registered meshes."""
    fields = vars(titan._MESH_TLS)
    return fields.get("dense_mesh"), fields.get("sparse_mesh")


def test_carrier_is_there():
    """This TorchTitan has what the carrier needs."""
    assert NAME in {carrier.name for carrier in ctxcarry.carriers()}
    assert NAME not in ctxcarry.registry.unavailable()


def test_mesh_is_lost_in_a_plain_pool(meshes, worker):
    """Without ctxcarry the worker has no mesh and sees a size of 1, without an error."""
    with titan.set_current_spmd_mesh(meshes[0]):
        assert (meshes[0], 2, 1) == sizes()
        assert (None, 1, 1) == worker.submit(sizes).result()


def test_mesh_is_carried(meshes, carrying):
    """A task sees its submitter's mesh and its sizes, and the next task none."""
    with titan.set_current_spmd_mesh(meshes[0]):
        assert (meshes[0], 2, 1) == carrying.submit(sizes).result()
    assert (None, 1, 1) == carrying.submit(sizes).result()


def test_mesh_of_spmd_types_comes_along(meshes, carrying):
    """Both libraries have the same mesh in a task, as TorchTitan sets it in both."""
    with titan.set_current_spmd_mesh(meshes[0]):
        here = spmd.current_mesh()
        assert here is not None
        assert here == carrying.submit(spmd.current_mesh).result()
    assert carrying.submit(spmd.current_mesh).result() is None


def test_nested_meshes_and_none(meshes, carrying):
    """The innermost mesh is current in a task, and none where it was set to None."""
    dense, sparse = meshes
    with titan.set_current_spmd_mesh(dense):
        with titan.set_current_spmd_mesh(sparse):
            inner = carrying.submit(sizes).result()
        with titan.set_current_spmd_mesh(None):
            none = carrying.submit(sizes).result()
        outer = carrying.submit(sizes).result()
    assert [(sparse, 1, 4), (None, 1, 1), (dense, 2, 1)] == [inner, none, outer]


def test_registered_meshes_are_carried(meshes, carrying):
    """The meshes registered for dense and sparse regions are there, and gone in the next task."""
    dense, sparse = meshes
    titan.set_spmd_meshes(dense_mesh=dense, sparse_mesh=sparse)

    def work():
        with titan.maybe_set_sparse_mesh():
            inside = sizes()
        return inside, titan.spmd_dense_mesh(), titan.spmd_sparse_mesh()

    assert ((sparse, 1, 4), dense, sparse) == carrying.submit(work).result()
    vars(titan._MESH_TLS).clear()
    assert (None, None) == carrying.submit(registered).result()


def test_task_may_set_meshes_of_its_own(meshes, carrying):
    """What a task enters or registers stays in it, although both threads push at once."""
    dense, sparse = meshes

    def work():
        titan.set_spmd_meshes(dense_mesh=sparse, sparse_mesh=None)
        with titan.set_current_spmd_mesh(sparse):
            inside = sizes()
        return inside, sizes(), registered()

    with titan.set_current_spmd_mesh(dense):
        found = carrying.submit(work).result()
        assert ((sparse, 1, 4), (dense, 2, 1), (sparse, None)) == found
        assert ((dense, 2, 1), (None, None)) == (sizes(), registered())


def test_stack_is_not_shared_with_the_task(meshes, carrying, barrier):
    """A submitter that leaves its mesh while the task runs does not take it from the task."""

    def work():
        barrier.wait()
        barrier.wait()
        return sizes()

    with titan.set_current_spmd_mesh(meshes[0]):
        future = carrying.submit(work)
        barrier.wait()
    barrier.wait()
    assert (meshes[0], 2, 1) == future.result()


def test_mesh_held_by_a_generator_goes_with_it(meshes, worker):
    """A carried generator has the mesh it entered on whichever thread resumes it."""

    @ctxcarry.carry_context
    def generate():
        with titan.set_current_spmd_mesh(meshes[0]):
            yield sizes()
            yield sizes()
        yield sizes()

    generator = generate()
    found = [next(generator), sizes(), worker.submit(next, generator).result(), next(generator)]
    none, set_ = (None, 1, 1), (meshes[0], 2, 1)
    assert [set_, none, set_, none] == found


def test_suppressed_and_cleared_mesh(meshes, worker):
    """Suppressed, the mesh is the worker's own; cleared, it is none there."""
    with titan.set_current_spmd_mesh(meshes[0]):
        with ctxcarry.suppress(NAME, "spmd_types.state"):
            suppressed = ctxcarry.bind(sizes)
        with ctxcarry.policy(clear=(NAME, "spmd_types.state")):
            cleared = ctxcarry.bind(sizes)

    def work():
        with titan.set_current_spmd_mesh(meshes[1]):
            return suppressed(), cleared(), sizes()

    assert [(meshes[1], 1, 4), (None, 1, 1), (meshes[1], 1, 4)] == list(
        worker.submit(work).result()
    )


def test_explain_names_the_dimensions(meshes):
    """Explain names the current and the registered meshes."""
    titan.set_spmd_meshes(dense_mesh=meshes[0], sparse_mesh=meshes[1])
    with titan.set_current_spmd_mesh(meshes[0]):
        text = ctxcarry.capture().explain()
    assert f"{NAME}: captured: dense_mesh ('dp', 'tp'), sparse_mesh ('efsdp', 'ep')" in text
    assert "current ('dp', 'tp')" in text
