"""Fixtures of the executor's tests."""

import sys
from pathlib import Path

import pytest

from ctxcarry import executor

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def make(registry, local):
    """Return a function that makes executors of `registry` and shuts them down at the end."""
    pools = []

    def make(max_workers=1, **options):
        pools.append(executor(max_workers, registry=registry, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()
