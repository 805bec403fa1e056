"""Fixtures of the tests of @carry_context."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctxcarry import carry_context

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def served():
    """Decorating something puts on the patches that other tests take off."""
    carry_context(print)


@pytest.fixture
def plain():
    """Return a plain pool of one thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool
