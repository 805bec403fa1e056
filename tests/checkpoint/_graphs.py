"""Blocks made of operators that never ran: made up ones, and those of a transformer."""

from __future__ import annotations

import itertools

from ctxcarry_checkpoint._evaluate import Program
from ctxcarry_checkpoint._ops import Action, Op
from hypothesis import strategies as st


def op(index, *parents, ms=1.0, nbytes=4, **given):
    """Return an operator."""
    return Op(
        index, given.pop("name", f"op{index}"), parents=parents, ms=ms, nbytes=nbytes, **given
    )


@st.composite
def blocks(draw, most=7, *, drawing_in_place=True):
    """Draw a block with operators of all sorts."""
    ops, last = [], {}
    for index in range(draw(st.integers(1, most))):
        sort = draw(st.sampled_from(["plain"] * 5 + ["in place", "factory", "number", "view"]))
        random = draw(st.integers(0, 3)) == 0
        if sort == "in place" and last:
            owner = draw(st.sampled_from(sorted(last)))
            parents = {last[owner], *_some(draw, last)}
            made = op(index, *sorted(parents), owner=owner, nbytes=0, savable=False)
            made.random = random and drawing_in_place
            last[owner] = index
        elif sort == "view" and last:
            made = op(index, *_some(draw, last)[:1], ms=0, nbytes=0, view=True, savable=False)
        elif sort == "number":
            made = op(index, *_some(draw, last), nbytes=0, scalar=True)
        else:
            parents = () if sort == "factory" else _some(draw, last)
            made = op(index, *parents, nbytes=draw(st.integers(0, 5)), random=random)
            made.factory = sort == "factory" and not random
            made.savable = not made.factory and draw(st.integers(0, 5)) > 0
            made.packed = draw(st.booleans())
            made.effect = draw(st.integers(0, 5)) == 0
            last[index] = index
        made.ms = 0.0 if made.view else float(draw(st.integers(0, 6)))
        ops.append(made)
    return ops


def _some(draw, last):
    if not last:
        return ()
    return tuple(draw(st.sets(st.sampled_from(sorted(last.values())), max_size=3)))


def best(ops, budget, held=(), transfer=None):
    """Return the least milliseconds of all choices that fit, by trying each."""
    program = Program(ops, held)
    nodes = [first for first, node in program.nodes.items() if node.savable]
    actions = tuple(Action) if transfer else (Action.RECOMPUTE, Action.SAVE)
    costs = []
    for chosen in itertools.product(actions, repeat=len(nodes)):
        found = program.evaluate(dict(zip(nodes, chosen)))
        if found.nbytes <= budget:
            costs.append(found.ms + program.transfer_ms(found.actions, transfer))
    return min(costs)
