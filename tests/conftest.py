"""What all tests share: a Context for each test, a look at whether an object is gone, a Ray."""

import gc
import os
from contextvars import copy_context
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From 2.60 on a Ray that a test starts has its process, and all that it starts, use a token,
# which it puts into the home directory. A Ray without one then takes the owners of its actors
# for dead, and ends them. Ray reads this when it is imported.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Call each test in a Context of its own, so that what it sets goes with it."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    copy_context().run(pyfuncitem.obj, **arguments)
    return True


@pytest.fixture
def is_collected():
    """Return a function that says whether the object of a weak reference is gone."""

    def check(reference):
        for _ in range(3):
            if reference() is None:
                return True
            gc.collect()
        return reference() is None

    return check


@pytest.fixture(scope="session")
def ray_nodes():
    """
    Give a Ray in processes of its own, with one node, which programs and tests connect to.

    To start one takes longer than nearly any test, and to connect to it does not.
    """
    cluster = pytest.importorskip("ray.cluster_utils").Cluster()
    # Where its workers find the packages, and what the tests of Ray call.
    path = ROOT, ROOT / "integrations", ROOT / "tests" / "ray", os.environ.get("PYTHONPATH")
    cluster.add_node = partial(
        cluster.add_node,
        env_vars={"PYTHONPATH": os.pathsep.join(str(part) for part in path if part)},
        include_dashboard=False,
        object_store_memory=80 << 20,
    )
    cluster.add_node(num_cpus=4, resources={"here": 1})
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def ray_address(ray_nodes):
    """Return where that Ray is."""
    return ray_nodes.address
