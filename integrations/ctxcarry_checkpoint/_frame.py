"""One call of a checkpoint: its forward, and its recompute when a backward needs it."""

from __future__ import annotations

from contextlib import nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from ctxcarry.boundaries.recompute import capture_forward
from ctxcarry_checkpoint import _mismatch as mismatch
from ctxcarry_checkpoint._ambient import Ambient, clear_autocast_cache
from ctxcarry_checkpoint._context import explained
from ctxcarry_checkpoint._forward import Forward
from ctxcarry_checkpoint._holder import Holder, Inputs, let_go_of_nodes, unpacked
from ctxcarry_checkpoint._kept import prefetch
from ctxcarry_checkpoint._placeholder import NeededError, Placeholder
from ctxcarry_checkpoint._private import (
    default_hooks,
    detached,
    keeps_graph,
    never_compiled,
    without_dynamo,
)
from ctxcarry_checkpoint._recompute import Recompute, Record
from ctxcarry_checkpoint._region import current as current_regions
from ctxcarry_checkpoint._trace import Site
from ctxcarry_checkpoint._where import ModuleNames
from ctxcarry_checkpoint.errors import RecomputeMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._record import Cost

__all__ = ("Frame",)


class _Done(BaseException):
    """All that is needed has been made."""


class Frame:
    """
    A block that is called now, and perhaps again in a backward.

    Args:
        fn: The block.
        args: Its arguments.
        kwargs: Its keyword arguments.
        site: What is known of the block.
        policy: What is to become of results.
        preserve_rng_state: Whether random numbers are to be the same again.
        early_stop: Whether a recompute ends with the last tensor that is needed.
        debug: Whether to compare values.
        root: The module whose submodules name what runs, if any.
        cost: Calls operators and tells what they take, for a plan.
        on_backward: Called when a backward first comes to the block.

    Attributes:
        quiet: Whether nothing is to be noted any more when a tensor is asked for.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        site: Site,
        policy: Any,
        *,
        preserve_rng_state: bool = True,
        early_stop: bool = True,
        debug: bool = False,
        root: torch.nn.Module | None = None,
        cost: Cost | None = None,
        on_backward: Callable[[], object] | None = None,
    ) -> None:
        self._fn = fn
        self._early_stop = early_stop
        self._on_backward = on_backward
        self._hooks = default_hooks()
        self._holds_others = False
        self._unused = True
        self.quiet = False
        self._spent = False
        if self._hooks is not None:
            # A checkpoint around this one counts what is packed. So the same is packed each
            # time: by a forward that is recorded, and follows none.
            site = Site() if cost is None else site
            around = getattr(self._hooks.pack, "__self__", None)
            if isinstance(around, Frame):
                around._holds_others = True
        self._inputs = Inputs(args, kwargs, self._hooks)
        self._ambient = Ambient(self._inputs.leaves(), preserve_rng_state=preserve_rng_state)
        self._snapshot = capture_forward()
        self._lock = RLock()
        self._record: Record | None = None
        names = ModuleNames(root)
        # Not a method of this one: what refers to what refers to it is freed late.
        self._mode = Forward(
            site,
            policy,
            self._hooks,
            debug=debug,
            names=lambda: (names.current, current_regions()),
            cost=cost,
        )
        self._holders = self._mode.holders
        self._with_nodes: list[Holder] = []
        # Of a forward that follows another one the names are known.
        self._names: Any = names if self._mode.trace is None else nullcontext()

    @without_dynamo
    def forward(self) -> Any:
        """Call the block."""
        mode = self._mode
        if self._ambient.casts:
            clear_autocast_cache()
        args, kwargs = self._inputs.given()
        try:
            with self._names, saved_tensors_hooks(self._pack, unpacked), mode:
                output = self._fn(*args, **kwargs)
        finally:
            let_go_of_nodes(self._with_nodes)
            self._with_nodes.clear()
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        mode.finish(tensors)
        self._record = self._so_far()
        self.quiet = self._on_backward is None
        self._inputs.let_go()
        return output

    def fill(self, holder: Holder) -> Any:
        """
        Return the tensor of a holder that does not have it, by a recompute if need be.

        Two threads may ask at once: one recomputes for both (pytorch#96764).
        """
        with self._lock:
            if holder.value is None:
                self._recompute()
            value = holder.value
            assert value is not None
            if keeps_graph():
                # Another pass makes it again, rather than have this one hold it.
                holder.value = None
        return value

    def used(self) -> None:
        """Note that a tensor is asked for."""
        if self._record is None:
            # The block takes gradients in its forward.
            self._unused = False
        elif self._on_backward is not None:
            call, self._on_backward = self._on_backward, None
            self.quiet = True
            call()

    def _so_far(self) -> Record:
        mode = self._mode
        trace = mode.trace
        funcs = mode.funcs if trace is None else trace.funcs
        where = mode.where if trace is None else trace.where
        places = mode.places if trace is None else trace.constants
        ops: list[Op] = []
        if trace is not None:
            ops = trace.ops
        elif mode.recorder is not None:
            ops = mode.recorder.ops
        return Record(
            funcs,
            mode.noted,
            places,
            mode.constants,
            mode.named,
            mode.versions,
            mode.kept,
            where,
            ops,
            trace,
            mode.values,
        )

    @never_compiled
    def _pack(self, tensor: torch.Tensor) -> Holder:
        mode = self._mode
        holders = self._holders
        packs = mode.packs
        number = len(holders)
        if number < len(packs) and packs[number][0] == len(mode.noted):
            _, stays, made = packs[number]
        else:
            stays, made = mode.pack(tensor)
        holder = Holder()
        holder._frame = self
        holder._made = made
        holder._hooks = holder._version = holder.value = None
        holders.append(ref(holder))
        if not stays:
            return holder
        if self._hooks is None:
            holder.fill(tensor)
            if not tensor.is_leaf:
                self._with_nodes.append(holder)
            return holder
        mode.paused = True
        try:
            holder.hold(tensor, self._hooks)
        finally:
            mode.paused = False
        return holder

    @without_dynamo
    def _recompute(self) -> None:
        record = self._record or self._so_far()
        prefetch(record.kept)
        trace = record.trace
        # A checkpoint within would record what was left out otherwise than in the forward.
        whole = trace is None or self._record is None or self._holds_others or self._spent
        skip = not whole and trace is not None and trace.skips
        try:
            made = self._again(record, skip=skip)
        except NeededError:
            if not skip:
                raise
            made = False
        if not made:
            # What was left out is needed after all: by a kernel that torch does not see, say.
            assert trace is not None
            trace.skips = False
            self._again(record, skip=False)
        if self._record is not None and not keeps_graph():
            # Nobody comes again: what the backward needs is with its nodes now.
            record.kept.clear()
            self._spent = True

    def _again(self, record: Record, *, skip: bool) -> bool:
        """Run the block again; say whether it went well with what was left out."""
        wanted = {
            number: holder
            for number, weak in enumerate(self._holders)
            if (holder := weak()) is not None and holder.value is None
        }
        asked = list(wanted.values())
        mode = Recompute(record, skip=skip)
        paused, self._mode.paused = self._mode.paused, True
        try:
            self._snapshot.run(self._run, mode, wanted)
        except _Done:
            return True
        except RecomputeMismatchError as error:
            if mode.skipped:
                # Whether it differs is known only with all that the forward had.
                return False
            if error.context is None:
                # The innermost of several checkpoints knows best.
                error.context = explained(self._snapshot)
            raise
        except Exception:
            if mode.skipped:
                return False
            raise
        finally:
            self._mode.paused = paused
            let_go_of_nodes(asked)
            # What was raised refers to this call, which refers to it.
            mode.stop = None
        missing = len(wanted)
        if missing:
            if mode.skipped:
                return False
            raise mismatch.fewer(record, mode.index, missing)
        return True

    def _run(self, mode: Recompute, wanted: dict[int, Holder]) -> None:
        packs = 0
        most = len(self._holders)
        early_stop = self._early_stop
        known = self._record is not None
        unused = self._unused

        @never_compiled
        def pack(tensor: torch.Tensor) -> torch.Tensor | None:
            nonlocal packs
            number, packs = packs, packs + 1
            holder = wanted.get(number)
            if holder is not None:
                if type(tensor) is Placeholder:
                    mode.stop = NeededError("autograd keeps a result that was left out")
                    return None
                holder.fill(tensor)
                del wanted[number]
                if not wanted and early_stop:
                    mode.stop = _Done()
            elif number >= most and known:
                mode.stop = mismatch.more(mode.record, mode.index, most)
            if unused:
                # The graph of a recompute only exists so that this is called.
                return None
            # Its own node would keep it, and be kept by it, for good.
            return detached(tensor) if tensor.requires_grad else tensor

        args, kwargs = self._inputs.again()
        with (
            self._ambient.again(),
            torch.enable_grad(),
            saved_tensors_hooks(pack, _unpacked),
            mode,
        ):
            self._fn(*args, **kwargs)
        if mode.stop is not None:
            raise mode.stop


@never_compiled
def _unpacked(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return what a recompute has packed, for a gradient that the block takes within it."""
    if tensor is None:
        msg = "the block takes gradients in its recompute, and took none in its forward"
        raise RecomputeMismatchError(msg)
    return tensor
