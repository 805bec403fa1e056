"""
Turn the carriers of a plan into flat functions.

A pool of one worker spends 6 µs on a task that does nothing, and most carriers
are C functions of 40 ns. A loop over them would cost more than they do, so the
loop is unrolled once, when the plan is made.

For the carriers ``0`` (which can be put) and ``1`` the source is::

    def read():
        return (
            read0(),
            read1(),
        )

    def here():
        return (
            capture0(),
            capture1(),
        )

    def enter(states, applied):
        try:
            (state0, state1, ) = states
            now = capture0()
            if now is not state0:
                put0(state0)
                applied.append((put0, now, name0))
            if capture1() is not state1:
                token = apply1(state1)
                applied.append((nothing if token is UNCHANGED else undo1, token, name1))
        except BaseException:
            states = now = token = state0 = state1 = None
            raise

    def leave(states, undone):
        try:
            (state0, state1, ) = states
            if name0 not in undone and capture0() is not state0:
                put0(state0)
            if name1 not in undone and capture1() is not state1:
                keep(apply1(state1))
        except BaseException:
            states = state0 = state1 = None
            raise

The last lines of each keep a traceback, which keeps this frame, from keeping the states.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from ctxcarry._carrier import MISSING, UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ctxcarry._plan import Step
    from ctxcarry._undo import Undo

__all__ = ("Fused", "fuse", "told")

_PUT = (
    "now = capture{i}()",
    "if now is not state{i}:",
    "    put{i}(state{i})",
    "    applied.append((put{i}, now, name{i}))",
)
_APPLY = (
    "if capture{i}() is not state{i}:",
    "    token = apply{i}(state{i})",
    "    applied.append((nothing if token is UNCHANGED else undo{i}, token, name{i}))",
)
# For carriers whose captured states are made anew each time, and so never identical.
_APPLY_ANEW = ("if state{i} is not default{i} or capture{i}() is not state{i}:", *_APPLY[1:])
_LEAVE_PUT = ("if name{i} not in undone and capture{i}() is not state{i}:", "    put{i}(state{i})")
_LEAVE = (_LEAVE_PUT[0], "    keep(apply{i}(state{i}))")


class Fused(NamedTuple):
    """
    The flat functions of a plan.

    Attributes:
        read: Returns the states of a snapshot taken now.
        here: Returns the states of this thread: the same, but for contexts that
            the policy clears.
        enter: Takes the states of a snapshot and a list. Applies the states that
            differ from what is current, and appends what undoes each.
        leave: Takes the states and the names of what will be undone. Sets back
            what else the work has left changed.
        at_line: Which carrier a line of the source is about, and whether it is
            asked there for its state (``"capture"``) or to change it.
    """

    read: Callable[[], tuple[object, ...]]
    here: Callable[[], tuple[object, ...]]
    enter: Callable[[Sequence[object], list[Undo]], None]
    leave: Callable[[Sequence[object], Collection[str]], None]
    at_line: dict[int, tuple[str, str]]

    def failing(self, error: BaseException) -> tuple[str, str]:
        """Return the name of the carrier that raised `error`, and what it was asked to do."""
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == _FILE:
                return self.at_line.get(traceback.tb_lineno, ("?", "capture"))
            traceback = traceback.tb_next
        return "?", "capture"


told: list[Callable[[Callable[..., Any]], None]] = []
"""Called with each function that is made from here on."""

_FILE = "<the carriers of a plan, unrolled by ctxcarry>"


def fuse(steps: Sequence[Step]) -> Fused:
    """Return the flat functions for `steps`."""
    source: list[str] = []
    at_line: dict[int, tuple[str, str]] = {}

    def write(line: str, name: str = "", asked: str = "") -> None:
        source.append(line)
        if name:
            at_line[len(source)] = name, asked

    for function in ("read", "here"):
        call = "read" if function == "read" else "capture"
        write(f"def {function}():")
        write("    return (")
        for i, step in enumerate(steps):
            write(f"        {call}{i}(),", step.name, "capture")
        write("    )")
    states = [f"state{i}" for i in range(len(steps))]
    for header, blocks in (
        ("def enter(states, applied):", [_entering(step) for step in steps]),
        ("def leave(states, undone):", [_leaving(step) for step in steps]),
    ):
        write(header)
        write("    try:")
        write(f"        ({', '.join(states)}, ) = states" if steps else "        pass")
        for i, (step, block) in enumerate(zip(steps, blocks)):
            for line in block:
                asked = "capture" if "capture" in line else "apply"
                write(f"        {line.format(i=i)}", step.name, asked)
        write("    except BaseException:")
        write(f"        {' = '.join(['states', 'now', 'token', *states])} = None")
        write("        raise")
    names: dict[str, Any] = {"UNCHANGED": UNCHANGED, "nothing": _nothing, "keep": _keep}
    for i, step in enumerate(steps):
        names |= {
            f"read{i}": step.read,
            f"capture{i}": step.capture,
            f"apply{i}": step.apply,
            f"undo{i}": step.undo,
            f"put{i}": step.put,
            f"name{i}": step.name,
            f"default{i}": getattr(step.carrier, "default", MISSING),
        }
    code = compile("\n".join(source), _FILE, "exec")
    exec(code, names)  # noqa: S102 - made of nothing but the templates above
    fused = Fused(names["read"], names["here"], names["enter"], names["leave"], at_line)
    _tell(fused[:4])
    return fused


def _tell(functions: Sequence[Callable[..., Any]]) -> None:
    for tell in told:
        for function in functions:
            tell(function)


def _nothing(token: object) -> None:
    """Undo what was found to be as asked."""


def _keep(token: object) -> None:
    """Keep `token`: some contexts are as they were put back for as long as it lives."""
    if token is not UNCHANGED:
        vars(_kept).setdefault("tokens", []).append(token)


_kept = threading.local()


def _entering(step: Step) -> tuple[str, ...]:
    if step.put is not None:
        return _PUT
    return _APPLY_ANEW if getattr(step.carrier, "captures_anew", False) else _APPLY


def _leaving(step: Step) -> tuple[str, ...]:
    return _LEAVE if step.put is None else _LEAVE_PUT
