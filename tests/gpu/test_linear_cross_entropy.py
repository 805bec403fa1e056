"""On a CUDA device: graphs, threads, sizes and memory of the fused linear cross-entropy."""

import contextvars
import threading

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from ctxcarry_kernels import LinearCrossEntropy, linear_cross_entropy  # noqa: E402
from ctxcarry_kernels._path import why_not_fused  # noqa: E402

MIB = 1 << 20


def problem(n=300, h=256, v=1500):
    """Return hidden, weight, labels, and gradients of both results."""
    torch.manual_seed(0)
    hidden = torch.randn(n, h, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(v, h, device="cuda") / h**0.5).bfloat16().requires_grad_()
    assert why_not_fused(hidden, weight) is None
    labels = torch.randint(0, v, (n,), device="cuda")
    return hidden, weight, labels, torch.randn(n, device="cuda"), torch.randn(n, device="cuda")


def run(hidden, weight, labels, dlogp, dentropy, **options):
    """Return logprob, entropy, and the gradients of hidden and weight."""
    out = linear_cross_entropy(hidden, weight, labels, **options)
    return *out, *torch.autograd.grad(out, (hidden, weight), (dlogp, dentropy))


def plain(hidden, weight, labels):
    """Return logprob and entropy by the plain formula in fp64."""
    log = torch.log_softmax(hidden.double() @ weight.double().t(), -1)
    return log.gather(1, labels[:, None])[:, 0], -(log.exp() * log).sum(-1)


# A leaf made on one stream and used on another, as it is when a graph is captured.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("budget", [0, 300 * 600, 1 << 30])
def test_graph(budget):
    """A graph that is replayed with new data gives what a call gives."""
    given = problem()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(*given, memory_budget=budget)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(*given, memory_budget=budget)
    with torch.no_grad():
        given[0].mul_(0.5)
        given[2].copy_(given[2].flip(0))
    graph.replay()
    for got, wanted in zip(results, run(*given, memory_budget=budget)):
        assert torch.equal(got, wanted)


def test_the_same_each_time():
    """Bit by bit, twenty times."""
    given = problem(n=1000, v=5000)
    first = run(*given, memory_budget=1000 * 600)
    for _ in range(20):
        again = run(*given, memory_budget=1000 * 600)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_a_token_alone():
    """A token's logprob is the same, bit by bit, in whatever company."""
    hidden, weight, labels, *_ = problem(n=1000, v=5000)
    with torch.no_grad():
        together = linear_cross_entropy(hidden, weight, labels)
        for i in (0, 127, 128, 999):
            alone = linear_cross_entropy(hidden[i : i + 1], weight, labels[i : i + 1])
            assert torch.equal(alone.logprobs[0], together.logprobs[i])
            assert torch.equal(alone.entropy[0], together.entropy[i])


def test_a_fresh_thread_without_an_allocator():
    """Neither the CUDA context nor an allocator need be there."""
    given = problem()
    wanted = run(*given)
    results = []
    thread = threading.Thread(
        target=lambda: contextvars.Context().run(lambda: results.extend(run(*given)))
    )
    thread.start()
    thread.join(120)
    assert all(torch.equal(a, b) for a, b in zip(results, wanted))


def test_the_allocator_of_the_user():
    """It is not called, and is still there afterwards."""
    from triton.runtime import _allocation

    called = []

    def allocate(size, alignment, stream):
        called.append(size)
        return torch.empty(size, device="cuda", dtype=torch.int8)

    def within():
        triton.set_allocator(allocate)
        run(*problem())
        return _allocation._allocator.get()

    assert contextvars.copy_context().run(within) is allocate
    assert not called


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within torch's compiler
@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_compiled(budget):
    """Compiled whole, on the kernels, with and without E for the backward."""
    given = problem()
    compiled = torch.compile(linear_cross_entropy, fullgraph=True)
    out = compiled(*given[:3], memory_budget=budget)
    got = (*out, *torch.autograd.grad(out, given[:2], given[3:]))
    for found, wanted in zip(got, run(*given, memory_budget=budget)):
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-3)


def test_module():
    """The module trains its own weight."""
    hidden, _, labels, *_ = problem()
    module = LinearCrossEntropy(256, 1500, device="cuda", dtype=torch.bfloat16)
    module(hidden, labels).logprobs.sum().backward()
    assert module.weight.grad.isfinite().all()
    assert module.weight.grad.any()


@pytest.mark.parametrize("budget", [0, 64 * MIB, 1 << 40])
def test_what_is_held(budget):
    """The forward keeps no more than its budget, or all that there is to keep."""
    hidden, weight, labels, *_ = problem(n=2048, v=32000)
    linear_cross_entropy(hidden, weight, labels, memory_budget=budget)
    before = torch.cuda.memory_allocated()
    out = linear_cross_entropy(hidden, weight, labels, memory_budget=budget)
    held = torch.cuda.memory_allocated() - before
    everything = 2048 * 32000 * 2 + 2048 * 125 * 4
    # Logprob, entropy, lse and x of each token, the labels, and what the allocator rounds up.
    assert held <= min(budget, everything) + 2 * MIB
    if budget:
        assert held > min(budget, everything) * 0.95
    del out


def test_more_than_2_to_the_31_logits():
    """Offsets are of 64 bits."""
    n, v = 17000, 131072
    assert n * v > 2**31
    hidden, weight, labels, dlogp, dentropy = problem(n=n, h=64, v=v)
    results = run(hidden, weight, labels, dlogp, dentropy, memory_budget=1 << 40)
    again = run(hidden, weight, labels, dlogp, dentropy, memory_budget=0)
    rows = torch.tensor([0, 1, n // 2, n - 2, n - 1], device="cuda")
    logp, entropy = plain(hidden[rows], weight, labels[rows])
    torch.testing.assert_close(results[0][rows].double(), logp, rtol=0, atol=1e-4)
    torch.testing.assert_close(results[1][rows].double(), entropy, rtol=0, atol=1e-4)
    for kept, made_again in zip(results[2:], again[2:]):
        error = (kept.float() - made_again.float()).norm() / made_again.float().norm()
        assert error < 1e-2


def test_rows_without_a_gradient():
    """They are left out of a large backward, and the others have the same gradient."""
    hidden, weight, labels, dlogp, dentropy = problem(n=4096, h=1024, v=128000)
    dlogp[::2] = dentropy[::2] = 0
    for budget in (0, 1 << 40):
        some = run(hidden, weight, labels, dlogp, dentropy, memory_budget=budget)
        every = run(
            hidden, weight, labels, dlogp, dentropy, memory_budget=budget, deterministic=True
        )
        assert not some[2][::2].any()
        for got, wanted in zip(some[2:], every[2:]):
            assert (got.float() - wanted.float()).norm() / wanted.float().norm() < 1e-2
