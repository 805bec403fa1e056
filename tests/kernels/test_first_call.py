"""The first use of the kernels says what takes so long."""

from __future__ import annotations

import threading

import pytest

_first_call = pytest.importorskip("ctxcarry_kernels._first_call", exc_type=ImportError)


@pytest.fixture(autouse=True)
def _anew(monkeypatch):
    """Have nothing been told, and little patience."""
    monkeypatch.setattr(_first_call, "_told", threading.Event())
    monkeypatch.setattr(_first_call, "_PATIENCE", 0.01)


def test_slow(caplog):
    """One line for all that is slow."""
    for _ in range(2):
        with _first_call.told_if_slow():
            _first_call._told.wait(10)
    assert [record.name for record in caplog.records] == ["ctxcarry_kernels"]
    assert "compiles the kernels" in caplog.text


def test_quick(caplog, monkeypatch):
    """Nothing for what is quick, also later."""
    monkeypatch.setattr(_first_call, "_PATIENCE", 3600)
    with _first_call.told_if_slow():
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert timers
    for timer in timers:
        timer.join(10)
    assert not any(timer.is_alive() for timer in timers)
    assert not caplog.records
