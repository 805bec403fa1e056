"""Fixtures of the tests of activation."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from activation_subjects import Putting, Scripted


@pytest.fixture(params=[Scripted, Putting], ids=["apply", "put"])
def kind(request):
    """Return a class of scripted carriers."""
    return request.param
