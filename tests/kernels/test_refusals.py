"""Arguments that do not belong together: each is refused, with what was given and expected."""

import pytest
import torch
from ctxcarry_kernels import linear_cross_entropy

INF, NAN = float("inf"), float("nan")


def call(**changes):
    """Call with good arguments but for `changes`."""
    given = {"hidden": torch.zeros(3, 8), "weight": torch.zeros(5, 8)}
    given |= {"labels": torch.zeros(3, dtype=torch.int64)} | changes
    return linear_cross_entropy(**given)


def test_what_is_changed_below_is_right():
    """The arguments that each refusal changes one of are accepted."""
    assert call().logprobs.shape == (3,)


TYPES = [
    ({"hidden": [1.0]}, "hidden must be a tensor, not list"),
    ({"weight": None}, "weight must be a tensor, not NoneType"),
    ({"labels": [0, 1, 2]}, "labels must be a tensor, not list"),
    ({"bias": 0.5}, "bias must be a tensor, not float"),
    ({"weight": torch.zeros(5, 8).half()}, "must both be .*torch.float32 and torch.float16.*Cast"),
    ({"hidden": torch.zeros(3, 8).double(), "weight": torch.zeros(5, 8).double()}, "float64"),
    ({"hidden": torch.zeros(3, 8).int(), "weight": torch.zeros(5, 8).int()}, "torch.int32"),
    ({"labels": torch.zeros(3)}, "labels must be int64 or int32, not torch.float32"),
    ({"labels": torch.zeros(3, dtype=torch.int16)}, "not torch.int16"),
]
VALUES = [
    ({"weight": torch.zeros(5, 7)}, r"hidden must be \[..., H\].*\[3, 8\] and \[5, 7\]"),
    ({"weight": torch.zeros(8)}, r"weight \[V, H\]; given \[3, 8\] and \[8\]"),
    ({"weight": torch.zeros(1, 5, 8)}, r"given \[3, 8\] and \[1, 5, 8\]"),
    ({"hidden": torch.zeros(())}, r"given \[\] and \[5, 8\]"),
    ({"labels": torch.zeros(4, dtype=torch.int64)}, r"must be \[3\], as hidden is; given \[4\]"),
    ({"labels": torch.zeros(3, 1, dtype=torch.int64)}, r"given \[3, 1\]"),
    ({"weight": torch.zeros(0, 8)}, r"at least one word and one feature; given \[0, 8\]"),
    ({"hidden": torch.zeros(3, 0), "weight": torch.zeros(5, 0)}, r"given \[5, 0\]"),
    ({"bias": torch.zeros(4)}, r"bias must be floating point and \[5\].*float32 and \[4\]"),
    ({"bias": torch.zeros(5, 1)}, r"given torch.float32 and \[5, 1\]"),
    ({"bias": torch.zeros(5, dtype=torch.int64)}, r"given torch.int64 and \[5\]"),
    ({"weight": torch.zeros(5, 8, device="meta")}, "on one device; given .*'weight': 'meta'"),
    ({"labels": torch.zeros(3, dtype=torch.int64, device="meta")}, "'labels': 'meta'"),
    ({"bias": torch.zeros(5, device="meta")}, "'bias': 'meta'"),
    *[({"temperature": t}, f"temperature must be .*; given {t}") for t in (0, -1.5, NAN, INF)],
    *[({"softcap": c}, f"softcap must be .*None for none; given {c}") for c in (0, -2.0, NAN, INF)],
    ({"reduction": "avg"}, 'reduction must be "none", "sum" or "mean"; given \'avg\''),
    ({"reduction": None}, "given None"),
]


@pytest.mark.parametrize(("changes", "message"), TYPES)
def test_types(changes, message):
    """Something else than tensors, or types that do not match, are a TypeError."""
    with pytest.raises(TypeError, match=message):
        call(**changes)


@pytest.mark.parametrize(("changes", "message"), VALUES)
def test_values(changes, message):
    """Shapes, devices and numbers that do not match are a ValueError."""
    with pytest.raises(ValueError, match=message):
        call(**changes)
