"""Fixtures of the tests of coroutines and generators."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stepping_subjects import variable


@pytest.fixture
def seen(default_local):
    """Return a function that says what is set here."""
    return lambda: (variable.get(), getattr(default_local, "value", None))


@pytest.fixture
def set_all(default_local):
    """Return a function that sets everything."""

    def set_all(value):
        variable.set(value)
        default_local.value = value

    return set_all
