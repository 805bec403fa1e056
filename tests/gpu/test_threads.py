"""On a CUDA device: what a kernel needs is there in the thread that launches it."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import ctxcarry  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
TIMEOUT = 120


@pytest.fixture
def kernels():
    """Return the kernels' module, with CUDA initialised on this thread."""
    import kernels

    torch.zeros(1, device="cuda")
    return kernels


def in_thread(make, fn, *args):
    """Return what ``fn(*args)`` returns, or raises, in a thread of its own."""
    result = []

    def run():
        try:
            result.append(fn(*args))
        except Exception as error:
            result.append(error)

    thread = make(target=run)
    thread.start()
    thread.join(TIMEOUT)
    return result[0]


def test_device_side_descriptors_in_a_pool(kernels):
    """A kernel that needs Triton's allocator dies in a plain pool and runs in ours."""
    x = torch.randn(256, 256, device="cuda")
    triton.set_allocator(kernels.scratch)
    copy = kernels.copy_with_device_side_descriptors
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="no allocator was set"):
        pool.submit(copy, x).result(TIMEOUT)
    with ctxcarry.executor(1) as pool:
        assert torch.equal(x, pool.submit(copy, x).result(TIMEOUT))


def test_host_side_descriptors_in_a_thread(kernels):
    """A kernel that needs a CUDA context fails in a plain thread and runs in ours."""
    x = torch.randn(256, 256, device="cuda")
    copy = kernels.copy_with_host_side_descriptors
    copy(x)  # compiled here: loading a kernel would bind a context to the thread
    plain = in_thread(threading.Thread, copy, x)
    assert isinstance(plain, Exception)
    assert "context" in str(plain)
    assert torch.equal(x, in_thread(ctxcarry.Thread, copy, x))


def test_host_side_descriptors_in_a_pool(kernels):
    """A new worker of our pool has a CUDA context at its first task."""
    x = torch.randn(256, 256, device="cuda")
    with ctxcarry.executor(1) as pool:
        copied = pool.submit(kernels.copy_with_host_side_descriptors, x).result(TIMEOUT)
    assert torch.equal(x, copied)


def test_stream_is_carried(kernels):
    """A task runs on the submitter's stream, and its worker is back on its own afterwards."""
    stream = torch.cuda.Stream()
    with ThreadPoolExecutor(1) as pool, torch.cuda.stream(stream):
        assert stream != pool.submit(torch.cuda.current_stream).result(TIMEOUT)
    with ctxcarry.executor(1) as pool:
        with torch.cuda.stream(stream):
            assert stream == pool.submit(torch.cuda.current_stream).result(TIMEOUT)
        with ctxcarry.suppress():
            default = torch.cuda.default_stream()
            assert default == pool.submit(torch.cuda.current_stream).result(TIMEOUT)


def test_stream_in_a_coroutine(kernels):
    """A stream entered around a pause is the generator's own."""
    stream, default = torch.cuda.Stream(), torch.cuda.current_stream()

    @ctxcarry.carry_context
    def body():
        with torch.cuda.stream(stream):
            yield torch.cuda.current_stream()
            yield torch.cuda.current_stream()
        yield torch.cuda.current_stream()

    generator = body()
    seen = []
    for current in generator:
        seen.append(current)
        assert default == torch.cuda.current_stream()
    assert [stream, stream, default] == seen


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_device_is_carried(kernels):
    """A task runs on the submitter's device, and its worker is back on its own afterwards."""
    with ctxcarry.executor(1) as pool:
        with torch.cuda.device(1):
            assert 1 == pool.submit(torch.cuda.current_device).result(TIMEOUT)
        with ctxcarry.suppress():
            assert 0 == pool.submit(torch.cuda.current_device).result(TIMEOUT)


def test_nothing_initialises_cuda():
    """Capturing does not initialise CUDA: a process that has cannot fork any more."""
    import subprocess

    code = (
        "import ctxcarry, torch; ctxcarry.capture().run(int); "
        "print(torch.cuda.is_initialized(), 'torch.cuda_device' in "
        "[c.name for c in ctxcarry.carriers()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT
    )
    assert "False True" == done.stdout.strip()
