"""What is said of rules that matched nothing that ran."""

import pytest

pytest.importorskip("torch")

from ctxcarry_checkpoint import policies
from ctxcarry_checkpoint._ops import Action, Op

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
RAN = [
    *[Op(i, "aten.addmm.default", module=f"mlp.w{i}") for i in range(3)],
    Op(3, "aten.relu.default", module="mlp"),
    Op(4, FLASH, module="attention", regions=("scores",)),
]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            policies.save("aten.mm.default"),
            (
                "save('aten.mm.default') matched none of the 5 operators; "
                "closest: aten.addmm.default (3 times)"
            ),
        ),
        (
            policies.save("aten._efficient_attention_forward"),
            (
                "save('aten._efficient_attention_forward') matched none of the 5 operators; "
                f"closest: {FLASH} (1 time)"
            ),
        ),
        (
            policies.collectives(),
            (
                "collectives(SAVE) matched none of the 5 operators; most often ran "
                f"aten.addmm.default (3 times), aten.relu.default (1 time), {FLASH} (1 time)"
            ),
        ),
        (
            policies.offload("aten.addmm", modules="attention"),
            (
                "offload('aten.addmm', modules='attention') matched none of the 5 operators; "
                "3 have the name; modules that ran: 'mlp.w0', 'mlp.w1', 'mlp.w2'"
            ),
        ),
        (
            policies.save("aten.addmm", modules="mlp", regions="scores"),
            (
                "save('aten.addmm', modules='mlp', regions='scores') matched none of the 5 "
                "operators; 3 have the name; regions that were open: none"
            ),
        ),
        (
            policies.save("aten.relu", modules="attention"),
            (
                "save('aten.relu', modules='attention') matched none of the 5 operators; "
                "1 has the name; modules that ran: 'mlp'"
            ),
        ),
        (
            policies.modules("atention"),
            (
                "modules('atention', SAVE) matched none of the 5 operators; "
                "modules that ran: 'attention' and 4 more"
            ),
        ),
        (
            policies.regions("score", Action.OFFLOAD),
            (
                "regions('score', OFFLOAD) matched none of the 5 operators; "
                "regions that were open: 'scores'"
            ),
        ),
        (
            policies.save("aten.addmm", regions="scores"),
            (
                "save('aten.addmm', regions='scores') matched none of the 5 operators; "
                "3 have the name; regions that were open: none"
            ),
        ),
    ],
)
def test_messages(policy, message):
    """The message has the rule, how much ran, and what is closest to the rule."""
    assert policy.unmatched(RAN) == [message]


@pytest.mark.parametrize(
    "policy",
    [
        policies.save("aten.mm", "aten.addmm"),
        policies.save("aten.addmm", modules="mlp"),
        policies.regions("scores"),
        policies.attention(),
        policies.matmuls(),
        policies.matmuls_by_shape((1, 1)),
        policies.full(),
        policies.custom(lambda *_: True),
    ],
)
def test_rules_that_matched(policy):
    """Nothing is said of a rule that some operator matched, or of what has no rule."""
    assert policy.unmatched(RAN) == []


@pytest.mark.parametrize("policy", [policies.device_to_host(), policies.torchtitan()])
def test_rules_that_need_not_match(policy):
    """Nothing is said of rules that are there in case."""
    assert policy.unmatched([Op(0, "aten.relu.default")]) == []


def test_nothing_ran():
    """A block without operators is told, without any closest ones."""
    assert policies.matmuls().unmatched([]) == [
        "matmuls(every=2, action=SAVE, start=0) matched none of the 0 operators"
    ]


def test_each_of_several():
    """Each part of several policies is looked at, also from an iterator that ends."""
    policy = policies.save("aten.mm") | policies.save("aten.addmm") | policies.save("aten.bmm")
    found = policy.unmatched(iter(RAN))
    rules = [message.partition(" ")[0] for message in found]
    assert rules == ["save('aten.mm')", "save('aten.bmm')"]


def test_many_operators_in_a_message():
    """A message names a few operators of many."""
    names = ["aten.mm", "aten.bmm", "aten.silu", "aten.gelu", "aten.sin", "aten.cos"]
    (message,) = policies.save(*names).unmatched(RAN)
    assert message.startswith(
        "save('aten.mm', 'aten.bmm', 'aten.silu', 'aten.gelu', and 2 more) matched none"
    )
