"""One connection to Ray for all of these tests, made with the first and gone after the last."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import ctxcarry

HERE = Path(__file__).parent
# The path of a driver is that of its workers.
sys.path.insert(0, str(HERE))

try:
    import ray
    import torch
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    # Torch imports it in passing, and its carrier must not appear in the midst of a test.
    import torch.distributed.device_mesh

import ray_work as work  # noqa: E402 - found by its path


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder, whose modules no worker can import."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("ray")
            ray.cloudpickle.register_pickle_by_value(item.module)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Leave Ray before the tests of other folders."""
    yield
    if nextitem is None or HERE not in nextitem.path.parents:
        ray.shutdown()


@pytest.fixture(scope="session")
def cluster(ray_address):
    """Connect to Ray, and return its address."""
    ray.init(ray_address, log_to_driver=False, logging_level="ERROR")
    yield ray_address
    ray.shutdown()


@pytest.fixture(autouse=True)
def _clean():
    """Check that a test leaves nothing set on the driver, and nothing installed."""
    yield
    installed = ctxcarry.installed()
    ctxcarry.uninstall()
    assert (work.UNSET, "unset", ()) == (work.probe(), work.OTHER.get(), installed)


@pytest.fixture
def variable_set():
    """Return a context manager that sets the variable: no worker has to import torch for it."""

    @contextmanager
    def scope(value="there"):
        token = work.VARIABLE.set(value)
        try:
            yield
        finally:
            work.VARIABLE.reset(token)

    return scope


@pytest.fixture
def something_set(variable_set):
    """Return a context manager that sets what `work.SET` says."""

    @contextmanager
    def scope(value="there"):
        with variable_set(value), torch.no_grad():
            yield

    return scope


@pytest.fixture
def made():
    """Return ``made(actor class, *args)``, which makes an actor that goes after the test."""
    handles = []

    def make(cls, *args, **kwargs):
        handles.append(cls.remote(*args, **kwargs))
        return handles[-1]

    yield make
    for handle in handles:
        ray.kill(handle)


@pytest.fixture
def installed():
    """Install the boundary for a test."""
    ctxcarry.install("ray")
    yield
    ctxcarry.uninstall("ray")
