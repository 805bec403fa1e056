"""
Turn the carriers of a plan into two flat functions.

A pool of one worker spends 6 µs on a task that does nothing, and most carriers
are C functions of 40 ns. A loop over them would cost more than they do, so the
loop is unrolled once, when the plan is made.

For the carriers ``a`` (which can be put) and ``b`` the source is::

    def read():
        return (read0(), read1(), )

    def here():
        return (capture0(), capture1(), )

    def enter(states, applied):
        (state0, state1, ) = states
        now = capture0()
        if now is not state0:
            applied.append(0)
            put0(state0)
            applied[-1] = (put0, now, name0)
        if state1 is not default1 or capture1() is not state1:
            applied.append(1)
            token = apply1(state1)
            if token is UNCHANGED:
                applied.pop()
            else:
                applied[-1] = (undo1, token, name1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctxcarry._plan import Step

    Read = Callable[[], tuple[object, ...]]
    # An entry of the list is (undo, token, name); while a carrier is being
    # applied its index stands in, so that a failure can be told by name.
    Enter = Callable[[Sequence[object], list[Any]], None]

__all__ = ("fuse",)

_PUT = """
    now = capture{i}()
    if now is not state{i}:
        applied.append({i})
        put{i}(state{i})
        applied[-1] = (put{i}, now, name{i})"""

_APPLY = """
    if state{i} is not default{i} or capture{i}() is not state{i}:
        applied.append({i})
        token = apply{i}(state{i})
        if token is UNCHANGED:
            applied.pop()
        else:
            applied[-1] = (undo{i}, token, name{i})"""


def fuse(steps: Sequence[Step]) -> tuple[Read, Read, Enter]:
    """
    Return ``read()``, ``here()`` and ``enter(states, applied)`` for `steps`.

    `read` returns the states of a snapshot and `here` those of this thread: the
    same, but for contexts that the policy clears. `enter` applies the states
    that differ from what is current and appends to `applied` what undoes each.
    """
    indices = range(len(steps))
    names: dict[str, Any] = {"UNCHANGED": UNCHANGED}
    body = ""
    for i, step in enumerate(steps):
        put = getattr(step.carrier, "put", None)
        names |= {
            f"read{i}": step.read,
            f"capture{i}": step.capture,
            f"apply{i}": step.apply,
            f"undo{i}": step.undo,
            f"put{i}": put,
            f"name{i}": step.name,
            f"default{i}": getattr(step.carrier, "default", MISSING),
        }
        body += (_APPLY if put is None else _PUT).format(i=i)
    read = "".join(f"read{i}(), " for i in indices)
    here = "".join(f"capture{i}(), " for i in indices)
    states = "".join(f"state{i}, " for i in indices)
    unpack = f"({states}) = states" if steps else "pass"
    source = f"""
def read():
    return ({read})

def here():
    return ({here})

def enter(states, applied):
    {unpack}{body}
"""
    exec(source, names)  # noqa: S102 - made of nothing but the templates above
    return names["read"], names["here"], names["enter"]
