"""Two real processes with gloo that train in parallel: their hooks, and their recompute."""

import multiprocessing
import sys
from pathlib import Path

import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)
pytest.importorskip("spmd_types")

FORWARD = ("FORWARD", "FORWARD", ("dp",))
BACKWARD = ("BACKWARD", "BACKWARD", ())
LOST = ("LOST", "LOST", ())
KINDS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return what each of two ranks says, by whether the boundary was installed."""
    sys.path.insert(0, str(Path(__file__).parent))  # of the processes, too
    import parallel

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    processes = [context.Process(target=parallel.run, args=(n, store, queue)) for n in range(2)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    assert [dict, dict] == [type(results[rank]) for rank in range(2)], results
    return [results[rank] for rank in range(2)]


@pytest.fixture(params=[0, 1])
def rank(ranks, request):
    """Give what each rank says."""
    return ranks[request.param]


def seen_by(noted):
    """Return what was seen, by who saw it."""
    found = {}
    for who, *seen in noted:
        found.setdefault(who, []).append(tuple(seen))
    return found


def hooks(kind, seen):
    """Return who sees `seen` in backward; FSDP replaces the parameter that has a hook."""
    names = ("output", "module", "weight") if kind == "ddp" else ("output", "module")
    return {name: [seen] for name in names}


@pytest.mark.parametrize("kind", KINDS)
def test_plain_pass_loses_the_contexts(rank, kind):
    """The fault: hooks, and what a checkpoint calls again, have nothing of any thread."""
    noted, _ = rank[False][f"{kind} checkpoint"]
    assert seen_by(noted) == {"block": [FORWARD, LOST], **hooks(kind, LOST)}


@pytest.mark.parametrize("kind", KINDS)
def test_hooks(rank, kind):
    """Hooks have the context of whoever started the pass."""
    noted, _ = rank[True][kind]
    assert seen_by(noted) == {"block": [FORWARD], **hooks(kind, BACKWARD)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["checkpoint", "reentrant"])
def test_recompute(rank, kind, how):
    """Recompute has the context of its forward, mesh included, after the scope has closed."""
    noted, _ = rank[True][f"{kind} {how}"]
    assert seen_by(noted) == {"block": [FORWARD, FORWARD], **hooks(kind, BACKWARD)}


@pytest.mark.parametrize("kind", KINDS)
def test_context_fn(rank, kind):
    """So it has with the explicit form, with nothing installed."""
    noted, _ = rank[False][f"{kind} context_fn"]
    assert seen_by(noted) == {"block": [FORWARD, FORWARD], **hooks(kind, LOST)}


@pytest.mark.parametrize("kind", KINDS)
def test_context_fn_where_all_is_carried(rank, kind):
    """The explicit form and the boundary get along."""
    noted, _ = rank[True][f"{kind} context_fn"]
    assert seen_by(noted) == {"block": [FORWARD, FORWARD], **hooks(kind, BACKWARD)}


def test_plain_communication_hook_loses_the_contexts(rank):
    """The fault: DDP calls it from C++, on the thread of the pass."""
    assert rank[False]["ddp comm_hook"][0] == [LOST]


@pytest.mark.parametrize("installed", [False, True])
def test_carried_communication_hook(rank, installed):
    """One that is carried explicitly has the context of whoever started the pass."""
    assert rank[installed]["ddp carried comm_hook"][0] == [BACKWARD]


def test_communication_hook(rank):
    """With the boundary installed any has."""
    assert rank[True]["ddp comm_hook"][0] == [BACKWARD]


def test_gradients(ranks):
    """Both ranks have the mean of both gradients, whatever is carried."""
    weight = torch.ones(2, 2, requires_grad=True)
    for number in (1.0, 2.0):
        (torch.full((1, 2), number) @ weight.T).sin().sum().backward()
    gradients = [task[1] for rank in ranks for tasks in rank.values() for task in tasks.values()]
    torch.testing.assert_close(
        torch.tensor(gradients), (weight.grad / 2).expand(len(gradients), 2, 2)
    )
