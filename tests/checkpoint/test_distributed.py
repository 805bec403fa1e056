"""Two real processes with gloo that train in parallel: bit by bit as without a checkpoint."""

import multiprocessing
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from ctxcarry_checkpoint import Action, SelectiveCheckpoint, policies
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
import _ranks
from _models import Plain, batches, fresh, same, steps

BOTH = (0, 1)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what each of two ranks has found."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_ranks.run, args=(rank, folder)) for rank in BOTH]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
        process.kill()
    found = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in BOTH]

    def of(name):
        both = [each[name] for each in found]
        assert not [each for each in both if isinstance(each, str)], "\n".join(map(str, both))
        return both

    return of


def calls(counts, *parts):
    """Return how often some operators were called in the backward of each step."""
    return [sum(n for name, n in each.items() if any(p in name for p in parts)) for each in counts]


def more(results, kind, saves, *parts):
    """Return how often more than without a checkpoint, the same on both ranks."""
    first, second = (
        [
            with_it - without
            for with_it, without in zip(calls(found[1], *parts), calls(plain[1], *parts))
        ]
        for found, plain in zip(results((kind, saves)), results((kind, None)))
    )
    assert first == second
    return first


CASES = [(kind, saves) for kind, several in _ranks.CASES.items() for saves in several]


@pytest.mark.parametrize(("kind", "saves"), CASES)
def test_gradients(kind, saves, results):
    """On both ranks outputs and gradients of all steps are those without a checkpoint."""
    for plain, found in zip(results((kind, None)), results((kind, saves))):
        assert same(plain[0], found[0])


def test_ranks_have_their_own(results):
    """Ranks see other batches, and add their gradients: there is something to be wrong."""
    first, second = results(("fsdp", None))
    count = len(list(fresh(Plain).parameters()))
    assert not torch.equal(first[0][0], second[0][0])
    assert same(first[0][1 : 1 + count], second[0][1 : 1 + count])


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_policy_decides(kind, results):
    """The first product of each block runs again unless it is kept."""
    assert more(results, kind, "nothing", "addmm") == [3, 3, 3]
    assert more(results, kind, "products", "addmm") == [0, 0, 0]
    assert more(results, f"{kind} after", "products", "addmm") == [0, 0, 0]
    assert more(results, kind, "budget", "addmm") == [3, 0, 0]


@pytest.mark.parametrize("kind", ["fsdp", "fsdp after", "ddp", "ddp after"])
def test_nothing_is_gathered_for_a_recompute(kind, results):
    """The recompute gathers no parameters and adds up no gradients of its own."""
    for saves in _ranks.CASES[kind]:
        assert more(results, kind, saves, "c10d", "fsdp") == [0, 0, 0]


@pytest.mark.parametrize("kind", ["tensor parallel", "collective"])
def test_a_collective_that_is_kept(kind, results):
    """A collective whose result is kept is not called again; otherwise it is, on both ranks."""
    assert more(results, kind, "nothing", "all_reduce") == [3, 3, 3]
    assert more(results, kind, "collectives", "all_reduce") == [0, 0, 0]
    assert more(results, kind, "everything", "all_reduce") == [0, 0, 0]


def test_a_collective_in_place(results):
    """What works in place cannot be kept as it was before, and is called again."""
    assert more(results, "in place", "nothing", "allreduce_") == [3, 3, 3]


def test_one_plan_for_all_ranks(results):
    """A plan that one rank has made is followed by all, from the first step on."""
    (text, first), (other, second) = results("shared plan")
    assert text == other
    for found, plain in zip((first, second), results(("collective", None))):
        assert same(plain[0], found[0])
    assert first[1] == second[1]


@pytest.mark.parametrize("kind", ["ranks that wait", "ranks with a DTensor"])
def test_ranks_that_wait_for_each_other(kind, results):
    """Where one rank waits for the other in a block, what they measure decides nothing."""
    (plan, measured, _), (other, other_measured, _) = results(kind)
    assert plan == other
    assert not measured
    assert not other_measured


def test_ranks_that_do_not_wait(results):
    """With FSDP they wait outside of the blocks, so that each follows what it has measured."""
    (plan, measured, found), (other, other_measured, same_found) = results("ranks that do not")
    assert measured
    assert other_measured
    assert plan != other
    assert same(found[0], same_found[0])


def test_plan_of_a_model_that_is_sharded(results):
    """A plan may be made after FSDP, and is the one of a model without."""
    engine = SelectiveCheckpoint(budget=0.8)
    plan = engine.plan(fresh(Plain), batches()[0], blocks="layers.*")
    expected = [plan.actions(name) for name in plan.blocks]
    assert results("plan of fsdp") == [expected, expected]


def test_plan_of_a_model_that_is_divided(results):
    """So it may after its products were divided among ranks, and is the same on all."""
    first, second = results("plan of tensor parallel")
    assert first == second
    assert len(first) == 3


@pytest.fixture
def late():
    """Return a collective whose result is there only once it has been waited for."""
    library = torch.library.Library("_c10d_functional", "FRAGMENT")
    library.define("ctxcarry_tests_late(Tensor x) -> Tensor")
    called = []

    def start(x):
        called.append(x)
        return torch.full_like(x, -7)

    library.impl("ctxcarry_tests_late", start, "CPU")

    def late(x):
        made = torch.ops._c10d_functional.ctxcarry_tests_late(x)
        # As the backend does on its own: not by an operator.
        made.numpy()[:] = x.numpy() * 2
        return made

    late.called = called
    yield late
    library._destroy()


class Late(nn.Module):
    """A block with such a collective."""

    def __init__(self, late):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.late = late

    def forward(self, x):
        """Run."""
        return (self.layer(x) * self.late(x.detach().sin())).tanh()


LATE = {
    "collectives": (policies.collectives(), {}),
    "everything": (policies.none(), {}),
    "offloaded": (policies.others(Action.OFFLOAD), {}),
    "debug": (policies.collectives(), {"debug": True}),
}


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize(("policy", "options"), LATE.values(), ids=LATE)
def test_a_result_that_comes_late(policy, options, hooks, late):
    """A collective that has not ended yet is kept all the same, with what it comes to."""
    pytest.importorskip("numpy")
    block = partial(Late, late)
    expected = steps(fresh(Plain, 2, block), batches())
    model = fresh(Plain, 2, block)
    SelectiveCheckpoint(policy, **options).apply(model, "layers.*")
    late.called.clear()
    around = saved_tensors_hooks(torch.clone, lambda tensor: tensor) if hooks else nullcontext()
    with around:
        assert same(expected, steps(model, batches()))
    assert len(late.called) == 2 * 3
