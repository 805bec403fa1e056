"""The operators as torch sees them, and which path serves which tensors."""

import re

import pytest
import torch
from ctxcarry_kernels import _path
from ctxcarry_kernels._plan import kept_words
from table import DEVICE, HOPPER, INTERPRETED, WAYS, problem

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


def numbers(way, kept):
    """Return the numbers of a call: temperature to skip_rows."""
    return 0.7, 0.0, -100, 0, "", True, kept, False


@pytest.mark.parametrize("bias", [False, True])
def test_forward(bias, way):
    """The operator is what its schema, its fake and its gradient say."""
    given = problem(way, bias=bias)
    kept = kept_words(9, 600, way.dtype.itemsize, way.budget(9)) if way.fused else 0
    leaves = given.leaves()
    args = (*leaves, given.labels, *numbers(way, kept))
    # The last traces the backward, too, which takes a second.
    checks = (*CHECKS, "test_aot_dispatch_dynamic") if bias and way == WAYS[-1] else CHECKS
    result = torch.library.opcheck(torch.ops.ctxcarry_kernels.forward, args, test_utils=checks)
    assert result == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.parametrize("needed", [[True, True, True], [False, True, False]], ids=str)
def test_backward(needed, way):
    """So is the operator of the backward, which has no gradient of its own."""
    given = problem(way, bias=True)
    kept = kept_words(9, 600, way.dtype.itemsize, way.budget(9)) if way.fused else 0
    tensors = (given.hidden, given.weight, given.bias, given.labels)
    results = torch.ops.ctxcarry_kernels.forward(*tensors, *numbers(way, kept))
    args = (*tensors, *results, given.dlogp, given.dentropy, needed, *numbers(way, kept))
    result = torch.library.opcheck(torch.ops.ctxcarry_kernels.backward, args, test_utils=CHECKS)
    assert result == dict.fromkeys(CHECKS, "SUCCESS")


def test_under_a_dispatch_mode(way):
    """Who intercepts operators sees one, with the results that there are without."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    given = problem(way)
    want = given.run()
    with Look():
        got = given.run()
    assert "ctxcarry_kernels.forward.default" in seen
    for mine, right in zip(got[:4], want[:4]):
        assert torch.allclose(mine, right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_path(dtype):
    """Plain torch serves where the kernels do not run, and a reason is given."""
    hidden, weight = (torch.zeros(n, 64, dtype=dtype, device=DEVICE) for n in (3, 5))
    why = _path.why_not_fused(hidden, weight)
    if INTERPRETED:
        served, because = dtype is not torch.bfloat16, "wrong with bf16"
    else:
        served = HOPPER and dtype is not torch.float32
        because = "cpu tensors|Triton" if DEVICE == "cpu" else "fp32|before Hopper|torch|Triton"
    assert (why is None) == served
    assert served or re.search(because, why)


def test_rows_of_no_whole_16_bytes():
    """Such rows are given as the reason, where the kernels would serve others."""
    good, bad = torch.zeros(3, 64, dtype=torch.float16), torch.zeros(3, 60, dtype=torch.float16)
    good, bad = good.to(DEVICE), bad.to(DEVICE)
    if _path.why_not_fused(good, good) is None:
        assert "rows of 60 elements" in _path.why_not_fused(bad, bad)
    else:
        assert _path.why_not_fused(bad, bad) == _path.why_not_fused(good, good)


def test_without_triton(monkeypatch, way):
    """Where Triton is missing, plain torch serves all."""
    monkeypatch.setattr(_path, "_lacking", lambda: "Triton is not installed")
    given = problem(way)
    given.served = False
    want = given.expected()
    assert (given.run().logprobs - want.logprobs).abs().max() <= 1e-4
