"""Tests that need a CUDA device."""

import pytest

torch = pytest.importorskip("torch")


def pytest_collection_modifyitems(items):
    """Mark everything here, and skip it where there is no device."""
    missing = pytest.mark.skip(reason="needs a CUDA device and Triton")
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(missing)
