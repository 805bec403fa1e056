"""Undoing is thorough, and does not hide the user's exception."""

import logging
import sys

import pytest
from activation_subjects import FAR, HOWS, Boom, Scene, Scripted

from ctxcarry import CarrierError

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


@pytest.mark.parametrize("how", HOWS)
def test_undo_fails(how, kind):
    """All undos are attempted; then an ExceptionGroup has one CarrierError for each that failed."""
    scene = Scene(kind, b={"undo": Boom}, d={"undo": Boom})
    with pytest.raises(ExceptionGroup, match="'d', 'b'") as caught:
        scene.activate(how, lambda: "result")
    errors = caught.value.exceptions
    assert [("d", "undo"), ("b", "undo")] == [(e.carrier, e.stage) for e in errors]
    assert all(type(e) is CarrierError and isinstance(e.__cause__, Boom) for e in errors)
    assert [("undo", name) for name in "dcba"] == scene.log[-4:]
    assert {**FAR, "b": "near b", "d": "near d"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("mine", [ValueError("mine"), KeyboardInterrupt("mine")], ids=repr)
def test_undo_fails_under_the_users_exception(how, kind, mine, caplog):
    """The user's exception is what is raised; each failure is a note on it and a log record."""
    scene = Scene(kind, b={"undo": Boom}, d={"undo": Boom})
    mine = type(mine)("mine")

    def work():
        raise mine

    with caplog.at_level(logging.ERROR, "ctxcarry"), pytest.raises(type(mine)) as caught:
        scene.activate(how, work)
    assert mine is caught.value
    d, b = mine.__notes__
    assert "'d' failed to undo" in d
    assert "'b' failed to undo" in b
    assert 2 == len(caplog.records)
    assert {"ctxcarry"} == {record.name for record in caplog.records}
    assert all(record.exc_info for record in caplog.records)
    assert {**FAR, "b": "near b", "d": "near d"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_notes_are_added_to_notes(how, caplog):
    """Notes that the user's exception has already stay first."""
    scene = Scene(Scripted, b={"undo": Boom})
    mine = ValueError("mine")
    mine.__notes__ = ["first"]

    def work():
        raise mine

    with pytest.raises(ValueError, match="mine"):
        scene.activate(how, work)
    assert ("first", 2) == (mine.__notes__[0], len(mine.__notes__))


@pytest.mark.parametrize("how", HOWS)
def test_undo_is_interrupted(how, kind):
    """An interrupt in an undo is raised as itself after the other undos have run."""
    scene = Scene(kind, c={"undo": KeyboardInterrupt})
    with pytest.raises(KeyboardInterrupt):
        scene.activate(how, lambda: "result")
    assert {**FAR, "c": "near c"} == scene.values()


def told(error):
    """Return every exception that `error` tells about: itself, its chain, its group, its notes."""
    found, todo = [], [error]
    while todo:
        one = todo.pop()
        if one is None or one in found:
            continue
        found.append(one)
        todo += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return found, "\n".join(note for e in found for note in getattr(e, "__notes__", ()))


@pytest.mark.parametrize("how", HOWS)
def test_interrupted_undo_beside_a_failing_one(how, kind):
    """An interrupt is not lost because another carrier's undo failed as well."""
    scene = Scene(kind, b={"undo": Boom}, d={"undo": KeyboardInterrupt})
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one is asked below
        scene.activate(how, lambda: "result")
    assert isinstance(caught.value, KeyboardInterrupt)
    found, notes = told(caught.value)
    assert "'b' failed to undo" in "\n".join([notes, *map(str, found)])
    assert {**FAR, "b": "near b", "d": "near d"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_interrupted_undo_under_the_users_exception(how, kind):
    """An interrupt in an undo and the user's exception: neither is lost."""
    scene = Scene(kind, c={"undo": KeyboardInterrupt})
    mine = ValueError("mine")

    def work():
        raise mine

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one is asked below
        scene.activate(how, work)
    found, notes = told(caught.value)
    assert mine in found
    assert any(isinstance(e, KeyboardInterrupt) for e in found) or "KeyboardInterrupt" in notes
    assert {**FAR, "c": "near c"} == scene.values()
