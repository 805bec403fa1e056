"""Say in words what becomes of an operator, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ctxcarry_checkpoint._budget import readable
from ctxcarry_checkpoint._ops import Action, first_of

if TYPE_CHECKING:
    from ctxcarry_checkpoint._evaluate import Choice, Program

__all__ = ("Spared", "spared", "why")


class Spared(NamedTuple):
    """
    What keeping one result spares.

    Attributes:
        first: The operator.
        nbytes: Bytes that it takes.
        ms: Milliseconds that the backward would take longer without it.
        others: How many other operators would run again too.
    """

    first: int
    nbytes: int
    ms: float
    others: int


def spared(program: Program, choice: Choice) -> list[Spared]:
    """Return what each result that is kept spares, the most first."""
    found = [_without(program, choice, first) for first in choice.actions]
    return sorted(found, key=lambda each: (-each.ms, each.first))


def why(program: Program, choice: Choice, index: int) -> str:
    """
    Return a reason for what becomes of an operator.

    Args:
        program: The operators of its block.
        choice: What was chosen for the block.
        index: Its place in the block.
    """
    op = program.ops[index]
    if op.view:
        return "view: it is made again for nothing from what it is a view of"
    if op.scalar:
        return "kept: it returns no tensor, so that it takes no memory"
    first = first_of(op)
    if first != index:
        owner = program.ops[first]
        return f"as {owner.name} ({first}), on whose result it works in place: " + why(
            program, choice, first
        )
    return _of_node(program, choice, first)


def _of_node(program: Program, choice: Choice, first: int) -> str:
    node, op = program.nodes[first], program.ops[first]
    if first in choice.actions:
        return _of_kept(program, choice, first)
    if first not in choice.reruns:
        return "skipped: nothing that the backward needs depends on it"
    if op.factory:
        return "never saved: makes its result from no tensor"
    if not op.savable:
        return f"never saved: {op.why or 'its result may not be kept'}"
    text = f"runs again: {_ms(node.ms)} for {readable(node.size)}"
    if node.effect:
        text += ", and because it does more than return a result"
    elif node.advance and not _is_read(program, choice, first):
        text += ", for the random numbers of those after it"
    return text


def _of_kept(program: Program, choice: Choice, first: int) -> str:
    found = _without(program, choice, first)
    if first in program.held:
        verb = "saved: it is there anyway, and spares"
    elif choice.actions[first] is Action.OFFLOAD:
        verb = f"offloaded: {readable(found.nbytes)} on the CPU spare"
    else:
        verb = f"saved: {readable(found.nbytes)} spare"
    text = f"{verb} {_ms(found.ms)} of {program.ops[first].name}{_others(found.others)}"
    if first in choice.reruns:
        text += "; it runs again even so, for the random numbers of those after it"
    return text


def _is_read(program: Program, choice: Choice, first: int) -> bool:
    if program.nodes[first].packed:
        return True
    readers = (node for node in program.nodes.values() if node.first in choice.reruns)
    return any(
        first in reader.parents(advance=reader.first in choice.actions) for reader in readers
    )


def _without(program: Program, choice: Choice, first: int) -> Spared:
    fewer = {each: action for each, action in choice.actions.items() if each != first}
    found = program.evaluate(fewer)
    more = found.reruns - choice.reruns - set(program.nodes[first].members)
    return Spared(first, program.nodes[first].nbytes, found.ms - choice.ms, len(more))


def _others(count: int) -> str:
    if not count:
        return ""
    return f" and {count} operator{'s' if count > 1 else ''} before it"


def _ms(ms: float) -> str:
    return f"{ms:.2g} ms"
