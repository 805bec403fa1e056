"""The blocks of a real model of Hugging Face transformers."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("transformers")

import torch
import transformers
from ctxcarry_checkpoint import SelectiveCheckpoint, policies

sys.path.insert(0, str(Path(__file__).parent))
from _models import Counting, same

NAMES = ("model.layers.0", "model.layers.1")
WORDS = 40
KINDS = ["sdpa", "eager"]


def model(kind, **options):
    """Make a small Llama, the same each time."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
        attn_implementation=kind,
        **options,
    )
    return transformers.LlamaForCausalLM(config).train()


def batches(count=3, rows=8):
    """Return different words for each step."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(count):
        words = torch.randint(0, WORDS, (2, rows), generator=generator)
        mask = torch.ones_like(words)
        mask[0, :2] = 0
        found.append({"input_ids": words, "attention_mask": mask, "labels": words})
    return found


def steps(made, given=None):
    """Train a model; return losses and gradients."""
    found = []
    torch.manual_seed(5)
    for batch in given or batches():
        loss = made(**batch).loss
        loss.backward()
        found.append(loss.detach().clone())
        with torch.no_grad():
            for parameter in made.parameters():
                found.append(parameter.grad.clone())
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None
    return found


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """Return how attention is computed."""
    return request.param


@pytest.fixture(scope="module")
def expected(kind):
    """Return what training gives without a checkpoint."""
    return steps(model(kind))


def products(made):
    """Return how many products the backward of a second step runs."""
    made(**batches()[0]).loss.backward()
    loss = made(**batches()[0]).loss
    with Counting() as mode:
        loss.backward()
    return mode.of("aten.mm.default")


@pytest.mark.parametrize("policy", [None, policies.save(torch.ops.aten.mm), policies.torchtitan()])
def test_gradients(kind, policy, expected):
    """Whatever is kept, losses and gradients are the same."""
    made = model(kind)
    assert SelectiveCheckpoint(policy).apply(made, "layers.*") == NAMES
    assert same(expected, steps(made))


def test_a_policy_decides(kind):
    """Without products that are kept, six of seven run again in each block."""
    plain = products(model(kind))
    found = []
    for policy in (None, policies.save(torch.ops.aten.mm)):
        made = model(kind)
        SelectiveCheckpoint(policy).apply(made)
        found.append(products(made) - plain)
    assert found == [6 * len(NAMES), 0]


def test_plan_of_keyword_arguments(kind, expected):
    """Inputs of a plan are given by name, as the model takes them."""
    made = model(kind)
    engine = SelectiveCheckpoint(budget=0.75)
    plan = engine.plan(made, batches()[0], blocks="layers.*")
    assert plan.blocks == NAMES
    assert plan.peak <= plan.budget
    assert 0 < plan.ms < plan.full_ms
    engine.apply(made, "layers.*")
    assert same(expected, steps(made))


def test_plan_is_what_is_recorded(kind, expected):
    """The first step leads to the plan that example inputs do."""
    made = model(kind)
    engine = SelectiveCheckpoint(budget=0.75)
    engine.apply(made, "layers.*")
    assert same(expected, steps(made))
    recorded = engine._planner.current
    plan = SelectiveCheckpoint(budget=0.75).plan(model(kind), batches()[0], blocks="layers.*")
    assert [plan.actions(name) for name in NAMES] == [recorded.actions(name) for name in NAMES]
    assert plan.peak == recorded.peak


def test_dropout_of_attention():
    """The recompute draws the numbers that attention drew."""
    expected = steps(model("eager", attention_dropout=0.3))
    made = model("eager", attention_dropout=0.3)
    SelectiveCheckpoint().apply(made, "layers.*")
    assert same(expected, steps(made))


def test_the_own_checkpoint_of_the_model(kind, expected):
    """With the model's own checkpoints around these there is still nothing different."""
    made = model(kind)
    # The name before version 5.24, and from then on.
    names = ("gradient_checkpointing_enable", "activation_checkpointing_enable")
    enable = next(getattr(made, name) for name in names[::-1] if hasattr(made, name))
    enable({"use_reentrant": False})
    SelectiveCheckpoint(policies.save(torch.ops.aten.mm)).apply(made, "layers.*")
    assert same(expected, steps(made))


def test_generate(kind):
    """A model with checkpoints generates what it generates without."""
    found = []
    for applied in (False, True):
        made = model(kind).eval()
        if applied:
            SelectiveCheckpoint().apply(made, "layers.*")
        words = batches()[0]["input_ids"]
        found.append(made.generate(words, max_new_tokens=3, do_sample=False, pad_token_id=0))
    assert torch.equal(*found)
