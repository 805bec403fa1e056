"""Fixtures of the tests of the kernels: each row of the table, in each way to compute it."""

import sys
from pathlib import Path

import pytest

# Pytest imports test files by path, and puts no folder on this one.
sys.path.insert(0, str(Path(__file__).parent))

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    import table

    @pytest.fixture(params=table.WAYS, ids=str)
    def way(request, one_tile):
        """Give each way that together touches every kernel."""
        return request.param

    @pytest.fixture(params=table.EVERY_WAY, ids=str)
    def every_way(request, one_tile):
        """Give each type with each amount that the forward may keep."""
        return request.param

    @pytest.fixture
    def one_tile(monkeypatch):
        """Have the backward go over the words a tile at a time, however few they are."""
        if any(way.fused for way in table.EVERY_WAY):
            monkeypatch.setattr("ctxcarry_kernels._fused.scratch", lambda *_: 1)
