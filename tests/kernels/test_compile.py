"""Compiled as a whole by each backend: the results are those without a compiler."""

import os
import shutil
from functools import partial

import pytest
import torch
from ctxcarry_kernels import LinearCrossEntropy, linear_cross_entropy
from ctxcarry_kernels._settings import Settings
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

# What torch says of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
]

N, H, V = 70, 32, 600
OPTIONS = {
    "nothing": {},
    "numbers": {"temperature": 0.6, "softcap": 8.0, "reduction": "sum"},
    "mean": {"bias": True, "ignore_index": 5, "reduction": "mean"},
    "recompute": {"memory_budget": 0},
    "some kept": {"memory_budget": 50_000, "deterministic": True},
    "no entropy": {"return_entropy": False},
}


@pytest.fixture(autouse=True)
def _forget():
    """Have nothing compiled before a test, nor after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def backend(request):
    """Give the name of each backend."""
    compilers = os.environ.get("CXX"), "g++", "clang++"
    if request.param == "inductor" and not any(map(shutil.which, filter(None, compilers))):
        pytest.skip("inductor needs a C++ compiler")
    return request.param


def tensors(tokens=N, dtype=torch.float32, *, bias=False):
    """Return hidden, weight, labels and bias, which the same seed makes the same each time."""
    make = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, H, generator=make).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=make).to(dtype).requires_grad_()
    labels = torch.randint(0, V, (tokens,), generator=make)
    labels[::7], labels[1::7] = -100, 5
    head = torch.randn(V, generator=make).to(dtype).requires_grad_() if bias else None
    return hidden, weight, labels, head


def loss(hidden, weight, labels, bias, **options):
    """Return a loss with ops around the call, for a compiler to fuse with it."""
    out = linear_cross_entropy(hidden.sin(), weight, labels, bias=bias, **options)
    total = -out.logprobs.exp().sum()
    return total if out.entropy is None else total + 0.1 * out.entropy.square().sum()


def step(fn, *args, **options):
    """Return the loss, and the gradients."""
    fresh = [a.detach().requires_grad_(a.requires_grad) if a is not None else None for a in args]
    value = fn(*fresh, **options)
    value.backward()
    return [value.detach(), *(a.grad for a in fresh if a is not None and a.requires_grad)]


# A backend may put together what is around the call, and round it differently.
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPTIONS)
def test_compiled(backend, name):
    """Loss and gradients are those without compiling, and there is one graph."""
    options = dict(OPTIONS[name])
    args = tensors(bias=options.pop("bias", False))
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    close(step(compiled, *args, **options), step(loss, *args, **options))


def test_numbers_of_tokens(backend):
    """Any number of tokens is served by one graph, where sizes are dynamic."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True)
    step(compiled, *tensors())
    before = counter.frame_count  # may be more than one: a number may be looked at twice
    for tokens in (N, 33, 300):
        args = tensors(tokens)
        close(step(compiled, *args), step(loss, *args))
    assert counter.frame_count == before > 0


def test_marked_dynamic():
    """So it is where only the number of tokens is."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, backend=counter, fullgraph=True)
    for tokens in (N, 33):
        hidden, weight, labels, _ = tensors(tokens)
        hidden, weight = hidden.detach(), weight.detach()
        torch._dynamo.mark_dynamic(hidden, 0)
        torch._dynamo.mark_dynamic(labels, 0)
        weight.requires_grad_()
        compiled(hidden, weight, labels, None).backward()
        expected = step(loss, hidden, tensors(tokens)[1], labels, None)
        torch.testing.assert_close(weight.grad, expected[1])
    assert counter.frame_count == 1


@pytest.mark.parametrize("outside", [True, False])
def test_autocast(outside):
    """Under autocast, around the compiled code or in it, gradients are of the parameters' types."""

    def inside(*args):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(*args)

    args = tensors(bias=True)
    compiled = torch.compile(loss if outside else inside, backend="aot_eager", fullgraph=True)
    expected = step(inside, *args)
    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        found = step(compiled, *args)
    assert [torch.float32] * 4 == [t.dtype for t in found]
    torch.testing.assert_close(found, expected)
    # It is another result than without.
    assert not torch.equal(found[0], step(loss, *args)[0])


@pytest.mark.parametrize("backend", ["aot_eager"], indirect=True)
def test_module(backend):
    """A compiled module has the gradients of one that is not."""
    torch.manual_seed(0)
    module = LinearCrossEntropy(H, V, bias=True, temperature=0.9, reduction="mean")
    hidden, _, labels, _ = tensors()
    found = []
    for call in (module, torch.compile(module, backend=backend, fullgraph=True)):
        module.zero_grad()
        call(hidden, labels).logprobs.backward()
        found.append([parameter.grad.clone() for parameter in module.parameters()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["inductor"], indirect=True)
def test_no_grad(backend):
    """Without gradients there are the same results."""
    args = tensors()
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), loss(*args))


NUMBERS = Settings(0.8, 0.0, -100, 0, "", entropy=True, kept=0, skip_rows=True)


@pytest.mark.parametrize("kept", [0, 512, V])
@pytest.mark.parametrize("bias", [False, True])
def test_forward_operator(bias, kept):
    """Torch's own checks of the operator: schema, fake, autograd, and traced with any sizes."""
    hidden, weight, labels, head = tensors(bias=bias)
    args = (hidden, weight, head, labels, *NUMBERS._replace(kept=kept))
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if not kept:  # what was to be kept is memory that plain torch leaves as it finds it
        checks.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.ctxcarry_kernels.forward, args, test_utils=checks)


@pytest.mark.parametrize("needed", [(True, True, True), (True, False, False), (False, True, False)])
@pytest.mark.parametrize("entropy", [True, False])
def test_backward_operator(needed, entropy):
    """So for the backward, with each gradient that may be needed."""
    hidden, weight, labels, head = (t.detach() for t in tensors(bias=True))
    results = torch.ops.ctxcarry_kernels.forward(hidden, weight, head, labels, *NUMBERS)
    dlogp, dentropy = torch.ones(N), torch.full((N,), 0.5) if entropy else None
    args = (hidden, weight, head, labels, *results, dlogp, dentropy, list(needed), *NUMBERS)
    torch.library.opcheck(torch.ops.ctxcarry_kernels.backward, args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fake_tensors(dtype):
    """Fake tensors have the right shapes and types, of sizes that no machine has memory for."""
    with FakeTensorMode():
        hidden = torch.empty(3, 1 << 30, 4096, dtype=dtype, requires_grad=True)
        weight = torch.empty(1 << 20, 4096, dtype=dtype, requires_grad=True)
        labels = torch.empty(3, 1 << 30, dtype=torch.int64)
        out = linear_cross_entropy(hidden, weight, labels)
        assert {(labels.shape, torch.float32)} == {(t.shape, t.dtype) for t in out}
        torch.autograd.backward(list(out), [torch.empty_like(t) for t in out])
        for tensor in (hidden, weight):
            assert (tensor.shape, dtype) == (tensor.grad.shape, tensor.grad.dtype)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    """An exported module has the operator in its graph, and takes any number of tokens."""
    module = LinearCrossEntropy(H, V, temperature=0.5).requires_grad_(False)
    tokens = torch.export.Dim("tokens", min=2, max=1 << 20)
    hidden, _, labels, _ = tensors()
    args, dynamic = (hidden.detach(), labels), ({0: tokens}, {0: tokens})
    exported = torch.export.export(module, args, dynamic_shapes=dynamic, strict=strict)
    called = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert torch.ops.ctxcarry_kernels.forward.default in called
    hidden, _, labels, _ = tensors(33)
    torch.testing.assert_close(
        exported.module()(hidden.detach(), labels), module(hidden.detach(), labels)
    )


def test_one_graph_for_each_temperature():
    """A temperature that changes is looked at anew."""
    args = tensors()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for temperature in (1.0, 0.5, 2.0):
        call = partial(step, temperature=temperature)
        torch.testing.assert_close(call(compiled, *args), call(loss, *args))


def test_refusals_in_compiled_code():
    """What is refused is refused while it is traced, in the same words."""
    hidden, weight, labels, _ = tensors()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="temperature must be finite and above 0"):
        compiled(hidden, weight, labels, None, temperature=0.0)
