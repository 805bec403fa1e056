"""Fixtures of the tests of policies."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from policy_subjects import Scene


@pytest.fixture
def scene(registry):
    """Return contexts of every kind under a registry of their own."""
    return Scene(registry)
