"""Fixtures of the tests with other processes: pools that are shared, a thread left clean."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

import ctxcarry

# Processes that are spawned get this path from multiprocessing.
sys.path.insert(0, str(Path(__file__).parent))

try:
    import torch
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]

import work

for _name in ("torch.distributed.device_mesh", "triton", "spmd_types", "multiprocessing.pool"):
    with suppress(ImportError):
        import_module(_name)

METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(autouse=True)
def _clean():
    """Check that a test leaves neither a patch nor a context behind."""
    before = work.probe(), ctxcarry.installed()
    yield
    ctxcarry.uninstall()
    assert (*before, []) == (work.probe(), ctxcarry.installed(), work.patches())


@pytest.fixture(scope="session", params=METHODS)
def method(request):
    """Give each way to start a process."""
    if request.param not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this platform has no {request.param}")
    return request.param


@pytest.fixture(scope="session")
def carrying(method):
    """Give a carrying pool of one process for each way to start it."""
    context = multiprocessing.get_context(method)
    with ctxcarry.executor(1, kind="process", mp_context=context) as pool:
        pool.submit(int).result()
        yield pool


@pytest.fixture(scope="session")
def plain(method):
    """Give a plain pool of one process for each way to start it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        pool.submit(int).result()
        yield pool


@pytest.fixture
def something_set():
    """Return a function that enters what `work.SET` says."""

    class Scope:
        def __enter__(self):
            self._token = work.VARIABLE.set("there")
            self._modes = torch.no_grad(), torch.autocast("cpu", torch.bfloat16)
            for mode in self._modes:
                mode.__enter__()

        def __exit__(self, *_):
            for mode in reversed(self._modes):
                mode.__exit__(None, None, None)
            work.VARIABLE.reset(self._token)

    return Scope
