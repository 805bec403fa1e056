"""Fixtures of the tests of when carriers register."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from registration_subjects import answer, start


@pytest.fixture
def python():
    """Give a function that runs code in another process and returns what it told."""
    started = []

    def run(code, *flags):
        started.append(start(code, *flags))
        return answer(started[-1])

    yield run
    for process in started:
        process.kill()
        process.communicate()
