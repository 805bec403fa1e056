"""The forward of a block: follow what is known of it, or record it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctxcarry_checkpoint._hidden import Watch, fingerprint
from ctxcarry_checkpoint._kept import Tensors
from ctxcarry_checkpoint._mode import BlockMode
from ctxcarry_checkpoint._ops import Action, Call
from ctxcarry_checkpoint._private import IGNORED, Hooks
from ctxcarry_checkpoint._record import Recorder, storages
from ctxcarry_checkpoint._results import brief, layout, tensors
from ctxcarry_checkpoint._schema import draws_random, is_collective, leaves_unset, written
from ctxcarry_checkpoint._steps import Unknown, taking
from ctxcarry_checkpoint._trace import Note, Site, Trace, constants
from ctxcarry_checkpoint._where import calling_lines

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Mapping, Sequence

    from ctxcarry_checkpoint._holder import Holder
    from ctxcarry_checkpoint._record import Cost, Pack
    from ctxcarry_checkpoint._steps import ForwardStep

__all__ = ("Forward",)

_CONSTANTS, _OUTSIDE, _KEEP, _LAYOUT, _RANDOM, _NAMED = (int(note) for note in Note)
_FREQUENT = _CONSTANTS | _OUTSIDE
_NOT_KNOWN = Unknown()


class Forward(BlockMode):  # type: ignore[no-untyped-call,unused-ignore]
    """
    Sees each operator of a block while its forward runs, and keeps what is to be kept.

    Args:
        site: The block, with what is known of it.
        policy: The policy, for this forward.
        hooks: Saved-tensor hooks around the block.
        debug: Whether to note a number of what each operator returns.
        names: Returns the module and the regions that run, where that is followed.
        cost: Calls operators and tells what they take, for a plan.

    Attributes:
        funcs: The operators so far.
        noted: Shape and type of each result.
        places: Of each operator: where arguments are no tensors, and whether its keyword
            arguments are none; as of `Trace`, where one is followed.
        constants: By operator: what is in those places, as `taking` takes it.
        named: By operator: its keyword arguments, if those are no tensors.
        versions: By operator: which arguments come from outside, and how often they were
            written to.
        kept: By operator: its result.
        values: By operator: a number of what it returned.
        recorder: What records, where nothing is followed from the start.
        holders: What autograd was given for each tensor that it keeps.
        packs: What is known of those, as of `Trace`.
        paused: Whether what runs now is not the block's.
    """

    def __init__(
        self,
        site: Site,
        policy: Any,
        hooks: Hooks | None,
        *,
        debug: bool = False,
        names: Callable[[], tuple[str, tuple[str, ...]]] = lambda: ("", ()),
        cost: Cost | None = None,
    ) -> None:
        super().__init__()
        self.site = site
        self.trace = None if debug else site.begin()
        self.paused = False
        self.recorder = Recorder(cost) if self.trace is None else None
        self.funcs: list[Any] = []
        self.noted: list[Any] = []
        self.places: list[tuple[tuple[int, ...], bool]] = []
        self.constants: dict[int, Any] = {}
        self.named: dict[int, Mapping[str, Any]] = {}
        self.versions: dict[int, tuple[tuple[int, ...], list[int]]] = {}
        self.kept: dict[int, Tensors] = {}
        self.values: dict[int, list[torch.Tensor | None]] = {}
        self.where: list[tuple[str, ...]] = []
        self._policy = policy.start()
        self._run = _plain if cost is None else cost.run
        # What counts has to see all calls, not only those of another shape.
        self._asks = bool(not policy.static or policy.by_shape)
        self._hooks = hooks
        self._debug = debug
        self._names = names
        self._watch = Watch()
        self._actions: dict[int, Action] = {}
        self._nth: dict[Any, int] = {}
        self._kept_storages: dict[int, int] = {}
        self.holders: list[weakref.ref[Holder]] = []
        self._follow(self.trace)

    @property
    def index(self) -> int:
        """Return how many operators have run."""
        return len(self.noted)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        noted = self.noted
        index = len(noted)
        expected, call, note, take = self._steps[index]
        if expected is not func or self.paused:
            return self._otherwise(index, func, args, kwargs or {})
        output = call(*args, **kwargs) if kwargs else call(*args)
        if note or self._asks:
            if note > _FREQUENT or self._asks:
                return self._followed(index, note, func, args, kwargs or {}, output)
            # The most frequent of all notes, and a frame less.
            if take is not None:
                try:
                    self.constants[index] = take(args)
                except IndexError:
                    self.leave()
                    self._new(func, args, kwargs or {}, output)
                    return output
            if note & _OUTSIDE:
                places = self._outside[index]
                self.versions[index] = places, [args[place]._version for place in places]
        noted.append((output.shape, output.dtype) if type(output) is Tensor else brief(output))
        return output

    def _otherwise(
        self, index: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call what is not the next operator of those known."""
        if self.paused or func in IGNORED:
            return func(*args, **kwargs)
        output = self._run(func, args, kwargs)
        if self.trace is not None and not self._switch(func):
            self.leave()
        if self.trace is not None:
            return self._followed(index, self.trace.notes[index], func, args, kwargs, output)
        self._new(func, args, kwargs, output)
        return output

    def pack(self, tensor: torch.Tensor) -> tuple[bool, bool]:
        """
        Note that autograd keeps a tensor which is not the next of those known.

        Returns:
            Whether to hold the tensor itself, since its memory stays in any case, and
            whether the block made it.
        """
        if self.trace is not None:
            self.leave()
        if self.recorder is not None:
            pack = self.recorder.pack(tensor)
            return self._stays(pack), bool(pack.owners)
        # Of what a forward that was not recorded holds, only parameters are sure to stay.
        stays = isinstance(tensor, torch.nn.Parameter)
        return stays, not stays

    def leave(self) -> None:
        """Stop following: this forward goes another way than any that is known."""
        trace = self.trace
        assert trace is not None
        index = len(self.noted)
        self.funcs = trace.funcs[:index]
        self.where = trace.where[:index]
        self.places = trace.constants[:index]
        self._follow(None)
        self.site.lost()
        for group in trace.groups:
            # Kept as it is after the last write, which may be another one now.
            self.kept.pop(group, None)
        if self._hooks is not None:
            # Whose memory the hooks have made of it cannot be told, nor who writes to it.
            kept = self.kept.items()
            self.kept = {i: each for i, each in kept if trace.ops[i].scalar}
        for kept_index, each in self.kept.items():
            self._note_storages(kept_index, each.held())
        for func in self.funcs:
            self._nth[func] = self._nth.get(func, 0) + 1

    def finish(self, outputs: list[torch.Tensor]) -> None:
        """
        Close the forward: learn from what was recorded.

        Must be called with this mode off.

        Args:
            outputs: The tensors that the block returned.
        """
        if self.trace is not None and len(self.noted) != len(self.trace.funcs):
            self.leave()
        if self.trace is not None:
            for group in self.trace.groups:
                self.kept[group].settle()
            return
        hidden = self._watch.changed()
        for index in hidden:
            self.kept.pop(index, None)
        if self.recorder is None:
            return
        ops = self.recorder.ops
        for index in hidden:
            ops[index].savable = False
            ops[index].why = "a kernel that torch does not see writes to it"
        self.versions = self.recorder.read_outside()
        made = Trace(
            ops,
            self.funcs,
            self.recorder.packs,
            self.places,
            self._actions,
            self.where,
            self.recorder.owners_of(outputs),
            {index: places for index, (places, _) in self.versions.items()},
        )
        self.site.add(made)

    def _follow(self, trace: Trace | None) -> None:
        self.trace = trace
        self._outside: Mapping[int, tuple[int, ...]] = {} if trace is None else trace.outside
        self._steps: Unknown | list[ForwardStep] = _NOT_KNOWN if trace is None else trace.steps
        self.packs: Sequence[tuple[int, bool, bool]] = () if trace is None else trace.packs

    def _switch(self, func: Any) -> bool:
        assert self.trace is not None
        other = self.site.other(self.trace, func, len(self.noted), len(self.holders))
        if other is not None:
            self._follow(other)
        return other is not None

    def _followed(
        self,
        index: int,
        note: int,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> Any:
        trace = self.trace
        assert trace is not None
        if (note & _RANDOM and draws_random(func, args, kwargs) != trace.ops[index].random) or (
            self._asks and self._decides_otherwise(index, func, args, kwargs, output)
        ):
            self.leave()
            self._new(func, args, kwargs, output)
            return output
        if note & _CONSTANTS:
            take = trace.steps[index][-1]
            assert take is not None
            try:
                self.constants[index] = take(args)
            except IndexError:
                self.leave()
                self._new(func, args, kwargs, output)
                return output
        if note & _NAMED:
            self.named[index] = kwargs
        if note & _OUTSIDE:
            places = trace.outside[index]
            self.versions[index] = places, [args[place]._version for place in places]
        if note & _KEEP:
            offload = trace.actions.get(index) is Action.OFFLOAD
            settled = index not in trace.groups
            # The result of a collective comes later, so nothing may copy it now.
            hooks = None if is_collective(func) else self._hooks
            self.kept[index] = Tensors(output, hooks, offload=offload, settled=settled)
        if note & _LAYOUT:
            self.noted.append(layout(output))
        elif type(output) is Tensor:
            self.noted.append((output.shape, output.dtype))
        else:
            self.noted.append(brief(output))
        return output

    def _decides_otherwise(
        self, index: int, func: Any, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> bool:
        """Ask a policy that may decide otherwise this time."""
        trace = self.trace
        assert trace is not None
        op = trace.ops[index]
        if not self._is_asked(op):
            return False
        call = Call(func, index, op.nth, args, kwargs, output, op.module, op.regions)
        action = self._policy.decide(call) or Action.RECOMPUTE
        return bool(action != trace.asked.get(index, Action.RECOMPUTE))

    @staticmethod
    def _is_asked(op: Any) -> bool:
        return bool(op.savable and not op.scalar and op.owner is None)

    def _new(self, func: Any, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        """Take in an operator that is not known yet."""
        index = len(self.noted)
        module, regions = self._names()
        recorder = self.recorder or Recorder()
        op = recorder.add(func, args, kwargs, output, module=module, regions=regions)
        nth = self._nth.get(func, 0)
        self._nth[func] = nth + 1
        self._write(func, args, kwargs)
        places, in_kwargs = constants(args, kwargs)
        self.places.append((places, in_kwargs))
        take = taking(places)
        if take is not None:
            self.constants[index] = take(args)
        if in_kwargs:
            self.named[index] = kwargs
        self.funcs.append(func)
        self.noted.append(brief(output))
        self.where.append(calling_lines() if self.recorder is not None else ())
        if op.scalar:
            self.kept[index] = Tensors(output, None, offload=False)
        elif self._is_asked(op):
            call = Call(func, index, nth, args, kwargs, output, module, regions)
            action = self._policy.decide(call) or Action.RECOMPUTE
            if action is not Action.RECOMPUTE:
                self._actions[index] = action
                self._keep(index, output, action)
        owner = func if op.owner is None else self.funcs[op.owner]
        if self._debug and not (op.view or leaves_unset(owner) or is_collective(owner)):
            self.values[index] = [fingerprint(t) for t in tensors(output)]

    def _keep(self, index: int, output: Any, action: Action) -> None:
        under_way = is_collective(self.funcs[index])
        hooks = None if under_way else self._hooks
        kept = Tensors(output, hooks, offload=action is Action.OFFLOAD and not under_way)
        self.kept[index] = kept
        self._note_storages(index, tensors(output))
        if self.recorder is not None and not under_way:
            self._watch.add(index, kept.held())

    def _note_storages(self, index: int, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            for key in storages(tensor):
                self._kept_storages[key] = index

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """Let go of what is written to: it was kept as it was before."""
        for tensor in written(func, args, kwargs):
            if isinstance(tensor, torch.Tensor):
                for key in storages(tensor):
                    index = self._kept_storages.pop(key, None)
                    if index is not None:
                        self.kept.pop(index, None)

    def _stays(self, pack: Pack) -> bool:
        return all(
            owner in self.kept and self._actions.get(owner) is Action.SAVE for owner in pack.owners
        )


def _plain(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)
