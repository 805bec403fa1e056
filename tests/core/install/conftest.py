"""Fixtures of the tests of `install` and `uninstall`."""

import sys
from pathlib import Path

import pytest

from ctxcarry import uninstall

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def uninstalled():
    """Start without any patch, also those for decorated functions, and end so."""
    uninstall()
    yield
    uninstall()
