"""Record the operators of a block: what each reads, makes, changes and costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from ctxcarry_checkpoint._ops import Op
from ctxcarry_checkpoint._schema import draws_random, is_collective, returns_first, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ("Cost", "Pack", "Recorder", "storages")

_INSIDE_KNOWN = frozenset({"aten", "prim", "prims"})


class Cost(Protocol):
    """What calls operators that are recorded, and tells what they take."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator, and return its result."""

    def ms(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> float:
        """Return the milliseconds of the operator that was called last."""


@dataclass
class Pack:
    """
    One tensor that autograd keeps for the backward.

    Attributes:
        at: How many operators had run.
        owners: The operators that made its memory; none if it comes from outside.
    """

    at: int
    owners: frozenset[int]


class Recorder:
    """
    Make an `Op` of each operator.

    Args:
        cost: Tells the milliseconds of an operator.
    """

    def __init__(self, cost: Cost | None = None) -> None:
        self.ops: list[Op] = []
        self.packs: list[Pack] = []
        self._cost = cost
        self._calls: dict[Any, int] = defaultdict(int)
        # A weak reference keeps the address of a storage from being used again.
        self._owner: dict[int, tuple[int, StorageWeakRef]] = {}
        self._writer: dict[int, int] = {}
        self._outside: dict[int, tuple[int, StorageWeakRef]] = {}
        self._parameters: set[int] = set()
        self._read_at: dict[int, dict[int, tuple[set[int], int]]] = {}

    def add(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        *,
        module: str = "",
        regions: tuple[str, ...] = (),
    ) -> Op:
        """Record an operator that has run."""
        index = len(self.ops)
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        inputs = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
        read = {key for tensor in inputs for key in storages(tensor)}
        targets = [t for t in written(func, args, kwargs) if isinstance(t, torch.Tensor)]
        changed = {key for tensor in targets for key in storages(tensor)}
        fresh = [s for t in results for k, s in storages(t).items() if k not in read | changed]
        parents = {self._writer[key] for key in read if key in self._writer}
        owners = {self._owner[key][0] for key in changed if key in self._owner}
        op = Op(index, _name(func), self._calls[func], module, tuple(sorted(parents)))
        op.regions = regions
        op.shapes = tuple(tuple(t.shape) for t in results)
        op.scalar = not results and output is not None
        op.view = bool(results) and not fresh and not changed
        op.factory = not inputs and bool(results)
        op.reshapes = torch.Tag.inplace_view in getattr(func, "tags", ())
        op.random = draws_random(func, args, kwargs)
        op.joint = getattr(func, "namespace", None) not in _INSIDE_KNOWN or any(
            is_traceable_wrapper_subclass(tensor) for tensor in (*inputs, *results)
        )
        op.nbytes = sum({s._cdata: s.nbytes() for s in fresh}.values())
        _settle(op, func, changed, owners, results, len(fresh))
        if changed - self._owner.keys() or is_collective(func):
            op.effect = True
        if op.owner is not None and targets[0]._is_view():
            # Autograd calls the views of a stand-in again where one was written to.
            self.ops[op.owner].effect = True
        for owner in owners:
            # Else it would have to be called on other memory, for its random numbers only.
            if op.owner is None or op.random:
                self.ops[owner].savable = False
                self.ops[owner].why = f"{op.name} writes to it"
        self._note_outside(op, func, targets, read)
        self._note_read(index, args)
        if self._cost is not None and not op.view:
            op.ms = self._cost.ms(func, args, kwargs, output)
        for storage in fresh:
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call,unused-ignore]
            self._owner[storage._cdata] = index, weak
        for key in {s._cdata for s in fresh} | (changed & self._owner.keys()):
            self._writer[key] = index
        self._calls[func] += 1
        self.ops.append(op)
        return op

    def _note_outside(self, op: Op, func: Any, targets: list[torch.Tensor], read: set[int]) -> None:
        """See to what is written to outside of the block: again only if the block reads it."""
        for key in read & self._outside.keys():
            self.ops[self._outside[key][0]].once = False
        if len(targets) != 1 or not returns_first(func) or is_collective(func):
            return
        for key, storage in storages(targets[0]).items():
            if key not in self._owner:
                op.once = True
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call,unused-ignore]
                self._outside[key] = op.index, weak

    def _note_read(self, index: int, args: tuple[Any, ...]) -> None:
        """Note which arguments come from outside, other than parameters."""
        for place, given in enumerate(args):
            if not isinstance(given, torch.Tensor) or given.is_inference():
                continue
            keys = set(storages(given))
            if isinstance(given, torch.nn.Parameter):
                self._parameters |= keys
            elif keys and not keys & (self._owner.keys() | self._parameters):
                self._read_at.setdefault(index, {})[place] = keys, given._version

    def read_outside(self) -> dict[int, tuple[tuple[int, ...], list[int]]]:
        """
        Return, by operator, which arguments come from outside and must not change.

        With each is how often it was written to before.

        Parameters are left out, whose versions autograd looks at where that matters, and what
        the block changes itself.
        """
        changed = self._outside.keys()
        found: dict[int, tuple[tuple[int, ...], list[int]]] = {}
        for index, places in self._read_at.items():
            same = {
                place: version for place, (keys, version) in places.items() if not keys & changed
            }
            if same:
                found[index] = tuple(same), list(same.values())
        return found

    def pack(self, tensor: torch.Tensor) -> Pack:
        """Record that autograd keeps a tensor."""
        read = storages(tensor)
        for key in read.keys() & self._outside.keys():
            self.ops[self._outside[key][0]].once = False
        keys = [key for key in read if key in self._owner]
        owners = frozenset(self._owner[key][0] for key in keys)
        found = Pack(len(self.ops), owners)
        self.packs.append(found)
        for owner in owners:
            op = self.ops[owner]
            op.packed, op.packed_at = True, (*op.packed_at, len(self.ops))
        return found

    def owners_of(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        """Return which operators made the memory of some tensors."""
        keys = {key for tensor in tensors for key in storages(tensor)}
        return frozenset(self._owner[key][0] for key in keys if key in self._owner)


def storages(tensor: torch.Tensor) -> dict[int, Any]:
    """Return what memory a tensor is in, by a number for each; several for a wrapper."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[no-untyped-call,unused-ignore]
        found: dict[int, Any] = {}
        for name in names:
            inner = getattr(tensor, name)
            # Some name what is no tensor, as a DTensor names its mesh.
            if isinstance(inner, torch.Tensor):
                found |= storages(inner)
        return found
    if tensor.layout is not torch.strided:
        # Without a storage of its own: looked at as if it were new each time.
        return {}
    storage = tensor.untyped_storage()
    return {storage._cdata: storage}


def _settle(
    op: Op, func: Any, changed: set[int], owners: set[int], results: list[Any], fresh: int
) -> None:
    """Say whether the result may be kept, and why not."""
    if changed:
        # What has other memory afterwards is not the same tensor any more.
        alone = (
            getattr(func, "_opname", "") != "set_"
            and len(owners) == 1
            and len(changed) == 1
            and not fresh
        )
        if alone and returns_first(func) and not is_collective(func):
            (op.owner,) = owners
            return
        op.effect = True
        op.savable, op.why = False, "it writes to several tensors, or to one from outside"
    elif op.view:
        op.savable, op.why = False, "it returns a view"
    elif op.factory:
        op.savable, op.why = False, "it makes its result from no tensor"
    elif any(is_traceable_wrapper_subclass(tensor) for tensor in results):
        # Nothing can stand in for such a tensor, so it is made again unless it is kept.
        op.effect = True
    elif any(tensor.layout is not torch.strided for tensor in results):
        op.savable, op.effect, op.why = False, True, "its result is not strided"
    elif results and fresh < len({key for t in results for key in storages(t)}):
        op.savable, op.effect, op.why = False, True, "it returns views beside new tensors"


def _name(func: Any) -> str:
    return str(func) if isinstance(func, torch._ops.OpOverload) else func.name()
