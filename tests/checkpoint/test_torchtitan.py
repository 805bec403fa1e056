"""The blocks of a real model of TorchTitan."""

import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("torchtitan.models.llama3")

import torch
import torchtitan.distributed.spmd_types as titan
from ctxcarry_checkpoint import SelectiveCheckpoint, policies
from spmd_types import _mesh_axis, current_mesh_names
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.distributed import utils
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention

sys.path.insert(0, str(Path(__file__).parent))
from _models import Counting, same, steps

NAMES = ("layers.0", "layers.1", "layers.2")
SIZE, WORDS = 32, 40


def model():
    """Make a small Llama, the same each time."""
    torch.manual_seed(1)
    layers = llama3._build_llama3_layers(
        n_layers=3,
        dim=SIZE,
        n_heads=4,
        n_kv_heads=2,
        hidden_dim=48,
        rope=ComplexRoPE.Config(dim=SIZE // 4, max_seq_len=64, theta=500000, scaling="llama"),
        attn_backend="varlen",
    )
    for layer in layers:
        # What the others need is not on every CPU.
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    embedding, norm = llama3._EMBEDDING_INIT, llama3._NORM_INIT
    made = llama3.Llama3Model.Config(
        dim=SIZE,
        vocab_size=WORDS,
        tok_embeddings=Embedding.Config(
            num_embeddings=WORDS, embedding_dim=SIZE, param_init=embedding
        ),
        norm=RMSNorm.Config(normalized_shape=SIZE, param_init=norm),
        lm_head=Linear.Config(
            in_features=SIZE, out_features=WORDS, param_init=llama3._output_linear_init(SIZE)
        ),
        layers=layers,
    ).build()
    made.init_states()
    return made


def tokens(count=3, rows=8):
    """Return different words for each step."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, WORDS, (2, rows), generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(model(), tokens())


def products(made):
    """Return how many products the backward of a second step runs."""
    made(tokens()[0]).sum().backward()
    loss = made(tokens()[0]).sum()
    with Counting() as mode:
        loss.backward()
    return mode.of("aten.mm.default")


@pytest.fixture
def lru_cache():
    """Switch a cache of the compiler on again, which applying TorchTitan's switches off."""
    yield
    torch._C._dynamo.eval_frame._set_lru_cache(True)


@pytest.mark.parametrize("pattern", ["layers.*", None])
def test_gradients(pattern, expected):
    """TorchTitan's own rule, on TorchTitan's own model."""
    made = model()
    engine = SelectiveCheckpoint(policies.torchtitan())
    assert engine.apply(made, pattern) == NAMES
    assert same(expected, steps(made, tokens()))


@pytest.mark.usefixtures("lru_cache")
def test_as_torchtitan_does(expected):
    """It keeps what TorchTitan keeps, so that it has no more to run again."""
    theirs, ours = model(), model()
    config = SelectiveAC.Config(force_recompute_mm_shapes_by_fqns=[])
    SelectiveAC(config).apply(theirs)
    SelectiveCheckpoint(policies.torchtitan()).apply(ours, "layers.*")
    plain = products(model())
    # Of five in each block they keep the first, third and fifth. The second, which nobody needs,
    # they run.
    assert products(theirs) - plain == 2 * len(NAMES)
    assert 0 < products(ours) - plain <= products(theirs) - plain
    theirs.zero_grad()
    assert same(expected, steps(theirs, tokens()))


def test_budget(expected):
    """A budget leads to the same gradients, and to less that runs again than without one."""
    made = model()
    engine = SelectiveCheckpoint(budget=0.7)
    plan = engine.plan(made, tokens()[0], blocks="layers.*")
    assert plan.blocks == NAMES
    assert plan.peak <= plan.budget
    assert 0 < plan.ms < plan.full_ms
    engine.apply(made, "layers.*")
    assert same(expected, steps(made, tokens()))


@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd is returning a function")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("options", [{"policy": policies.torchtitan()}, {"budget": 0.7}])
def test_blocks_that_are_compiled(options, expected):
    """Each by itself and after the checkpoints, as TorchTitan does; they share what is compiled."""
    torch._dynamo.reset()
    backend = AotEagerAndRecordGraphs()
    made = model()
    engine = SelectiveCheckpoint(**options)
    engine.apply(made, "layers.*")
    groups = 1
    if "budget" in options:
        groups = len(engine.plan(made, tokens()[0], compiled=True).groups)
    for layer in made.layers.values():
        layer.compile(backend=backend, fullgraph=True)
    found = steps(made, tokens())
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected))
    assert len(backend.graphs) == groups
    torch._dynamo.reset()


@pytest.fixture
def mesh():
    """Make a mesh over ranks that do not exist, with TorchTitan's backend that has meshes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    before = utils.get_spmd_backend()
    utils.set_spmd_backend("spmd_types")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    finally:
        torch.distributed.destroy_process_group()
        _mesh_axis._reset()
        utils.set_spmd_backend(before)
        vars(titan._MESH_TLS).clear()


@pytest.mark.parametrize("options", [{"policy": policies.torchtitan()}, {"budget": 0.6}])
def test_mesh_in_the_recompute(options, mesh):
    """A recompute has the meshes of its forward, on another thread and with the scope closed."""
    seen = []

    def note(*_):
        names = sorted(current_mesh_names() or ())
        seen.append((titan.spmd_mesh_size("tp"), names, threading.get_ident()))

    made = model()
    for layer in made.layers.values():
        # Within the block, so that it is called again.
        layer.attention_norm.register_forward_pre_hook(note)
    SelectiveCheckpoint(**options).apply(made, "layers.*")
    here = threading.get_ident()
    for _ in range(3):
        seen.clear()
        with titan.set_current_spmd_mesh(mesh):
            loss = made(tokens()[0]).sum()
        assert seen == [(2, ["dp", "tp"], here)] * 3
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join(60)
        assert [each[:2] for each in seen[3:]] == [(2, ["dp", "tp"])] * 3
        assert here not in {ident for *_, ident in seen[3:]}
