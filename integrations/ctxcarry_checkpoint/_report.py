"""A plan as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry_checkpoint._budget import readable
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._why import spared, why

if TYPE_CHECKING:
    from ctxcarry_checkpoint._plan import Group, Plan

__all__ = ("report",)

_MOST = 8
_MOST_KINDS = 4


def report(plan: Plan, console: Any = None) -> None:
    """
    Print a plan.

    Args:
        plan: The plan.
        console: A ``rich.console.Console``, or None for one on the standard output.

    Raises:
        ImportError: rich is missing.
    """
    try:
        from rich.console import Console  # noqa: PLC0415 - optional
        from rich.table import Table  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = 'a report needs rich. Install it with: pip install "ctxcarry[checkpoint]"'
        raise ImportError(msg) from error

    console = Console() if console is None else console
    table = Table(title="What each block keeps", title_justify="left")
    table.add_column("blocks")
    names = ("saved", "offloaded", "recompute", "of forward", "ops saved", "rerun", "skipped")
    for name in names:
        table.add_column(name, justify="right")
    for group in plan.groups:
        table.add_row(group.label, *_cells(group))
    console.print(table)
    kinds: dict[int, Group] = {}
    # Of each kind the group that most blocks are in, if it keeps anything there is a reason for.
    for group in sorted(plan.groups, key=lambda each: (not each.choice.actions, -len(each.names))):
        kinds.setdefault(id(group.kind), group)
    for group in list(kinds.values())[:_MOST_KINDS]:
        console.print(_reasons(group, Table))
    if len(kinds) > _MOST_KINDS:
        more = f"Plan.why() tells of the blocks of {len(kinds) - _MOST_KINDS} more kinds"
        console.print(more, highlight=False, markup=False)
    for line in _totals(plan):
        console.print(line, highlight=False, markup=False)


def _cells(group: Group) -> list[str]:
    choice, kind = group.choice, group.kind
    again = len(choice.reruns)
    nodes = kind.program.nodes
    kept = {member for first in choice.actions for member in nodes[first].members}
    decided = {member for node in nodes.values() for member in node.members}
    return [
        readable(choice.nbytes),
        readable(choice.offloaded) if choice.offloaded else "-",
        f"{choice.ms:.3g} ms",
        _percent(choice.ms, kind.forward_ms),
        str(len(choice.actions)),
        str(again),
        str(len(decided - kept - choice.reruns)),
    ]


def _reasons(group: Group, table_type: Any) -> Any:
    table = table_type(title=f"What is worth the most in {group.label}", title_justify="left")
    table.add_column("operator")
    table.add_column("module")
    table.add_column("bytes", justify="right")
    table.add_column("spares", justify="right")
    table.add_column("why")
    program, choice = group.kind.program, group.choice
    found = spared(program, choice)
    for each in found[:_MOST]:
        op = group.kind.ops[each.first]
        table.add_row(
            f"{each.first} {op.name}",
            op.module or "-",
            readable(each.nbytes),
            f"{each.ms:.3g} ms",
            why(program, choice, each.first),
        )
    rest = found[_MOST:]
    if rest:
        nbytes = sum(each.nbytes for each in rest if choice.actions[each.first] is Action.SAVE)
        table.add_row(f"{len(rest)} more", "", readable(nbytes), "", "")
    table.caption = _longest(group)
    table.caption_justify = "left"
    return table


def _longest(group: Group) -> str:
    """Name what runs again for the longest time."""
    program, choice = group.kind.program, group.choice
    again = [
        node
        for node in program.nodes.values()
        if node.first in choice.reruns and node.first not in choice.actions
    ]
    if not again:
        return "Nothing runs again."
    node = max(again, key=lambda node: node.ms)
    op = group.kind.ops[node.first]
    return f"Longest to run again: {node.first} {op.name}: {why(program, choice, node.first)}"


def _totals(plan: Plan) -> list[str]:
    how = "measured" if plan.measured else "estimated"
    times = f", {how} times of {plan.roofline}" if plan.roofline else ""
    offloaded = plan.offloaded_bytes
    lines = [
        f"Budget {readable(plan.budget)}, predicted peak {readable(plan.peak)}{times}",
        f"This plan: keeps {readable(plan.kept_bytes)}"
        + (f" and {readable(offloaded)} on the CPU" if offloaded else "")
        + f", recomputes {plan.ms:.3g} ms, {_percent(plan.ms, plan.forward_ms)} of the forward",
        f"No checkpointing: keeps {readable(plan.unchecked_bytes)}, recomputes nothing",
        f"Full checkpointing: peak {readable(plan.full_bytes)}, recomputes {plan.full_ms:.3g} ms",
    ]
    if not plan.exact:
        lines.append("Some choices may not be the best: the optimizer was missing, or out of time")
    return lines


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
