"""Two real processes with gloo: groups and meshes captured in one, looked up in the other."""

import multiprocessing

import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)


@pytest.fixture(scope="module")
def both_ranks(tmp_path_factory):
    """Return a function that gives what a task of `ranks` returned on each of two ranks."""
    import ranks

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    processes = [context.Process(target=ranks.run, args=(rank, store, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    assert [dict, dict] == [type(results[rank]) for rank in range(2)], results
    return lambda task: (results[0][task], results[1][task])


def test_groups(both_ranks):
    """Groups captured on rank 0 are each rank's own objects, and collectives work over them."""
    expected = True, True, True, 3, ()
    assert (expected, expected) == both_ranks("groups")


def test_meshes(both_ranks):
    """Meshes captured on rank 1 are each rank's own objects, submeshes included."""
    expected = [(True, True, ("dp",), rank) for rank in range(2)]
    assert tuple(expected) == both_ranks("meshes")


def test_mismatches(both_ranks):
    """A group and a mesh that the other rank has not are mismatches that show both sides."""
    own, (group, mesh) = both_ranks("mismatches")
    assert ["loaded", "loaded"] == own
    assert [] == [part for part in ("tp", "[0]", "[0, 1]") if part not in group]
    assert [] == [part for part in ("mesh dp", "mesh tp", "[0, 1]") if part not in mesh]


def test_a_child_without_groups(both_ranks):
    """A worker that never joined the world goes without groups, and with all the rest."""
    found, _ = both_ranks("to_a_child")
    assert ((), "there") == found
