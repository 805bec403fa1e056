"""Checkpoints within compiled code: the policy says what the compiled backward runs again."""

import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from ctxcarry_checkpoint import Action, SelectiveCheckpoint, checkpoint, policies
from torch import nn
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.utils.checkpoint import CheckpointPolicy

sys.path.insert(0, str(Path(__file__).parent))
from _models import Plain, batches, fresh, steps

# What torch says of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd is returning a function"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
aten = torch.ops.aten
PRODUCTS = policies.save(aten.mm)


@pytest.fixture(autouse=True)
def _forget():
    """Have nothing compiled before a test, nor after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def backend():
    """Return a compiler that keeps its graphs."""
    return AotEagerAndRecordGraphs()


def block(x, w, v):
    """Run two products and two sines."""
    return torch.sin(torch.sin(x @ w) @ v)


def own(_, op, *args, **kwargs):
    """Save products, as a function that torch's checkpoint takes."""
    return (
        CheckpointPolicy.MUST_SAVE if op is aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE
    )


def gradients(fn):
    """Return the gradients of a function of three matrices."""
    generator = torch.Generator().manual_seed(1)
    leaves = [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(3)]
    fn(*leaves).sum().backward()
    return [leaf.grad for leaf in leaves]


def backward_of(backend, *names):
    """Return how often operators are in the backward that was compiled."""
    (graph,) = backend.bw_graphs
    found = [str(node.target) for node in graph.graph.nodes]
    return tuple(found.count(name) for name in names)


# Four products of the gradient itself; a sine only where what is behind it was not kept.
@pytest.mark.parametrize(
    ("policy", "found"),
    [
        pytest.param(None, (6, 1), id="nothing"),
        pytest.param(PRODUCTS, (4, 1), id="products"),
        pytest.param(policies.none(), (4, 0), id="everything"),
        pytest.param(policies.others(Action.OFFLOAD), (4, 0), id="offloaded"),
        pytest.param(
            policies.first(policies.recompute(aten.mm), policies.none()), (6, 0), id="sines"
        ),
        pytest.param([aten.mm], (4, 1), id="list"),
        pytest.param(own, (4, 1), id="function"),
    ],
)
def test_a_policy_decides(policy, found, backend):
    """Without a graph break, what is kept is not in the backward."""
    fn = partial(checkpoint, block, policy=policy)
    made = gradients(torch.compile(fn, backend=backend, fullgraph=True))
    assert all(torch.allclose(a, b) for a, b in zip(made, gradients(block)))
    assert backward_of(backend, "aten.mm.default", "aten.sin.default") == found


@pytest.mark.xfail(strict=True, reason="dynamo traces how the policy is made")
def test_a_policy_that_is_made_within(backend):
    """A policy may be written where the checkpoint is called."""

    def fn(*args):
        return checkpoint(block, *args, policy=policies.save(torch.ops.aten.mm))

    gradients(torch.compile(fn, backend=backend, fullgraph=True))
    assert backward_of(backend, "aten.mm.default") == (4,)


def test_once_for_each_shape(backend):
    """A compiled checkpoint is called again without compiling it again."""
    compiled = torch.compile(partial(checkpoint, block, policy=PRODUCTS), backend=backend)
    for _ in range(3):
        gradients(compiled)
    assert len(backend.graphs) == 1


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without anything."""
    return steps(fresh(Plain), batches())


def close(one, other):
    """Say whether two lists of tensors are about equal."""
    return len(one) == len(other) > 0 and all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other)
    )


PLAIN = 4
"""Products in the backward of a block: two for each of two layers."""


@pytest.mark.parametrize(("policy", "again"), [(None, 1), (policies.save(aten.addmm), 0)])
def test_blocks_that_are_compiled(policy, again, backend, expected):
    """Blocks are compiled after their checkpoints are put on, as TorchTitan does."""
    model = fresh(Plain)
    SelectiveCheckpoint(policy).apply(model, "layers.*")
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True)
    assert close(steps(model, batches()), expected)
    (products,) = backward_of(backend, "aten.mm.default")
    (whole,) = backward_of(backend, "aten.addmm.default")
    assert (products, whole) == (PLAIN, again)


@pytest.mark.parametrize("before", [True, False])
def test_a_model_that_is_compiled(before, backend, expected):
    """So may a model as a whole, before or after."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint()
    compiled = torch.compile(model, backend=backend, fullgraph=True) if before else model
    assert engine.apply(compiled, "layers.*")[-1].endswith("layers.2")
    if not before:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert close(steps(compiled, batches()), expected)
    # One of each block; the compiler may add what is cheap to make again.
    assert backward_of(backend, "aten.addmm.default") >= (3,)


def test_a_plan_is_followed(backend, expected):
    """Compiled blocks keep what a plan says."""
    counts = []
    for budget in (0.45, 0.9):
        torch._dynamo.reset()
        backend.bw_graphs.clear()
        model = fresh(Plain)
        engine = SelectiveCheckpoint(budget=budget)
        engine.plan(model, batches()[0], blocks="layers.*")
        engine.apply(model, "layers.*")
        model.compile(backend=backend, fullgraph=True)
        assert close(steps(model, batches()), expected)
        counts += backward_of(backend, "aten.addmm.default")
    assert counts[0] - counts[1] == 3


class Part(nn.Module):
    """A product: torch leaves modules of its own as they are."""

    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, x):
        """Run."""
        return self.product(x)


def test_a_compiled_part_of_a_block(backend, expected):
    """A checkpoint that is not compiled calls what is."""
    for policy in (None, policies.save(aten.gelu)):
        model = fresh(Plain)
        for layer in model.layers:
            layer.up = Part(layer.up)
            layer.up.compile(backend=backend, fullgraph=True)
        SelectiveCheckpoint(policy).apply(model, "layers.*")
        assert close(steps(model, batches()), expected)
    # A hook on each module tells its name while a forward is recorded, and is compiled with it.
    assert 1 <= len(backend.graphs) <= 2
    called = [node.target for graph in backend.graphs for node in graph.graph.nodes]
    assert called.count(torch._C._nn.linear) == len(backend.graphs)


def test_a_function_that_is_compiled_within_a_checkpoint(backend):
    """So does the function."""
    compiled = torch.compile(block, backend=backend, fullgraph=True)
    for policy in (None, PRODUCTS):
        for _ in range(3):
            made = gradients(partial(checkpoint, compiled, policy=policy))
            assert all(torch.allclose(a, b) for a, b in zip(made, gradients(block)))


def test_blocks_with_one_policy_are_compiled_once(backend):
    """However many there are: torch gives up after compiling the same code some times."""
    model = fresh(lambda: Plain(count=torch._dynamo.config.recompile_limit + 2))
    SelectiveCheckpoint(PRODUCTS).apply(model, "layers.*")
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True)
    steps(model, batches())
    assert len(backend.graphs) == 1


def test_blocks_are_compiled_once_for_each_policy_of_a_plan(backend):
    """Those that a plan treats alike share what is compiled."""
    model = fresh(lambda: Plain(count=12))
    engine = SelectiveCheckpoint(budget=0.6)
    plan = engine.plan(model, batches()[0], blocks="layers.*", compiled=True)
    engine.apply(model, "layers.*")
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True)
    steps(model, batches())
    assert 1 < len(backend.graphs) == len(plan.groups) < 12


@pytest.mark.parametrize("how", ["module", "wrapper", "model", "model wrapper"])
def test_a_plan_of_what_is_compiled(how, backend, expected):
    """It is made of the operators, and for compiled blocks, without being told so."""
    model = fresh(Plain)
    told = SelectiveCheckpoint(budget=0.7).plan(
        model, batches()[0], blocks="layers.*", compiled=True
    )
    options = {"backend": backend, "fullgraph": True}
    compiled = model
    if how == "module":
        for layer in model.layers:
            layer.compile(**options)
    elif how == "wrapper":
        for name, layer in list(model.layers.named_children()):
            model.layers.register_module(name, torch.compile(layer, **options))
    elif how == "model":
        model.compile(**options)
    else:
        compiled = torch.compile(model, **options)
    engine = SelectiveCheckpoint(budget=0.7)
    engine.apply(compiled, "layers.*")
    plan = engine.plan(compiled, batches()[0])
    assert (plan.peak, plan.ms) == (told.peak, told.ms)
    assert not backend.graphs
    assert close(steps(compiled, batches()), expected)
    assert backend.graphs


def test_compiled_blocks_keep_other_results():
    """A budget is not spent on what is fused, and what is fused takes none."""
    plans = []
    for compiled in (False, True):
        engine = SelectiveCheckpoint(budget=0.7)
        plans.append(engine.plan(fresh(Plain), batches()[0], blocks="layers.*", compiled=compiled))
    eager, fused = plans
    assert fused.forward_ms < eager.forward_ms
    assert any(op.fused for op in fused.groups[0].kind.ops)
    assert not any(op.fused for op in eager.groups[0].kind.ops)
    assert type(fused).from_json(fused.to_json()) == fused


def test_a_plan_that_recomputes_nothing(backend, expected):
    """The compiler is left alone: there is no checkpoint in what it sees."""
    for budget, checkpoints in ((1.0, 0), (0.7, 1)):
        torch._dynamo.reset()
        backend.graphs.clear()
        model = fresh(Plain)
        engine = SelectiveCheckpoint(budget=budget)
        engine.plan(model, batches()[0], blocks="layers.*", compiled=True)
        engine.apply(model, "layers.*")
        for layer in model.layers:
            layer.compile(backend=backend, fullgraph=True)
        assert close(steps(model, batches()), expected)
        targets = [str(node.target) for node in backend.graphs[0].graph.nodes]
        assert targets.count("tag_activation_checkpoint") == checkpoints


def test_a_plan_that_is_adjusted(backend):
    """Blocks are compiled anew where a measured peak asks for other choices."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9)
    plan = engine.plan(model, batches()[0], blocks="layers.*", compiled=True)
    engine.apply(model, "layers.*")
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True)
    steps(model, batches())
    before = len(backend.graphs)
    adjusted = engine.adjust(plan.peak + plan.budget // 4)
    assert adjusted.kept_bytes < plan.kept_bytes
    assert adjusted.peak <= plan.budget
    plain = fresh(Plain)
    steps(plain, batches())
    assert close(steps(model, batches()), steps(plain, batches()))
    assert len(backend.graphs) > before


def test_nothing_to_adjust():
    """Without a budget, or before a plan, there is none."""
    with pytest.raises(ValueError, match="without a budget"):
        SelectiveCheckpoint(PRODUCTS).adjust(1)
    with pytest.raises(ValueError, match="no plan to adjust yet"):
        SelectiveCheckpoint(budget=0.5).adjust(1)
