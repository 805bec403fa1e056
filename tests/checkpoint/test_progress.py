"""How far a plan is: shown where it takes long."""

import io
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("rich")

from ctxcarry_checkpoint import SelectiveCheckpoint, _progress
from ctxcarry_checkpoint._progress import quiet, showing

sys.path.insert(0, str(Path(__file__).parent))
from _budgets import EXAMPLE
from _models import Plain, fresh


class Terminal(io.StringIO):
    """A file that says of itself that it is a terminal, or that it is not."""

    def __init__(self, *, terminal=True):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        """Say so."""
        return self.terminal


def said(monkeypatch, *, patience, terminal=True, **options):
    """Return what a plan says on the standard error."""
    monkeypatch.setattr(_progress, "_PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", Terminal(terminal=terminal))
    monkeypatch.setenv("TERM", "xterm")
    SelectiveCheckpoint(budget=0.7).plan(fresh(Plain), EXAMPLE, blocks="layers.*", **options)
    return sys.stderr.getvalue()


def test_a_terminal_sees_each_part(monkeypatch):
    """On a terminal there is a bar for each of the parts of the work."""
    text = said(monkeypatch, patience=0)
    for part in ("what the model runs", "what each kind of block may keep", "other budgets cost"):
        assert part in text
    assert "100%" in text


def test_nothing_is_said_of_what_is_fast(monkeypatch):
    """What takes no time shows no bar."""
    assert said(monkeypatch, patience=3600) == ""


def test_whether_it_is_wanted(monkeypatch):
    """Without a terminal, or where it is not wanted, there is none; where it is, there is."""
    assert said(monkeypatch, patience=0, terminal=False) == ""
    assert said(monkeypatch, patience=0, progress=False) == ""
    assert "100%" in said(monkeypatch, patience=0, terminal=False, progress=True)


def test_a_bar_ends_with_an_error(monkeypatch):
    """An error on the way leaves the terminal as it was."""
    monkeypatch.setattr(_progress, "_PATIENCE", 0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")

    def fail():
        with showing(wanted=None) as tell:
            tell("part", 0, 2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    # The cursor is visible again.
    assert sys.stderr.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_without_rich(monkeypatch):
    """Without rich nothing is shown, and whoever asks for it is told what to install."""
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with showing(wanted=None) as tell:
        assert tell is quiet
    with pytest.raises(ImportError, match="ctxcarry\\[checkpoint\\]"), showing(wanted=True):
        pass
