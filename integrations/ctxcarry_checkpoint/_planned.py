"""From a budget to the policy of each block: record, solve, follow, measure, solve again."""

from __future__ import annotations

import functools
import warnings
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from ctxcarry_checkpoint._cost import Estimator
from ctxcarry_checkpoint._fused import as_compiled
from ctxcarry_checkpoint._given import RECOMPUTE, Slot
from ctxcarry_checkpoint._measured import Clock, Times
from ctxcarry_checkpoint._meter import Meter
from ctxcarry_checkpoint._plan import Plan, make_plan
from ctxcarry_checkpoint._policy import Policy
from ctxcarry_checkpoint._progress import quiet
from ctxcarry_checkpoint._ranks import must_agree
from ctxcarry_checkpoint._roofline import Roofline
from ctxcarry_checkpoint._whole import Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ctxcarry_checkpoint._ops import Action, Call
    from ctxcarry_checkpoint._progress import Tell
    from ctxcarry_checkpoint._record import Cost
    from ctxcarry_checkpoint._trace import Site, Trace

__all__ = ("Planned", "Planner")

_CLOSE = 0.02
_MOST_CORRECTIONS = 2
_OF_A_RECORDING = ("_plan", "_recorded", "_meter", "_compiled", "_in_flight", "_times")


class Planned(Policy):
    """
    What a plan says about a block.

    Args:
        actions: By name of an operator and how often it was called before.
    """

    def __init__(self, actions: Mapping[tuple[str, int], Action]) -> None:
        self._actions = dict(actions)

    def decide(self, call: Call) -> Action | None:
        """Return what the plan says of a call."""
        return self._actions.get((str(call.op), call.nth))

    def __repr__(self) -> str:
        return f"Planned({len(self._actions)} kept)"


class _Flight:
    """
    A call of a block that is recorded, from its forward to its backward.

    It is gone, too, where the graph is let go of without a backward.
    """

    def __init__(self, planner: Planner, name: str) -> None:
        self._planner = planner
        self._name = name

    def __call__(self) -> None:
        self._planner.needed(self._name, self)


class Planner:
    """
    Has blocks recorded, and knows the plan from then on.

    Args:
        budget: What they may hold.
        offload: Whether results may be kept in the memory of the CPU.
        roofline: The speed of the device, or the name of a card, by which times are estimated;
            if None, they are measured where operators run.
        plan: A plan to follow as it is.
    """

    def __init__(
        self,
        budget: str | float,
        *,
        offload: bool = False,
        roofline: Roofline | str | None = None,
        plan: Plan | None = None,
    ) -> None:
        self._budget = budget
        self._offload = offload
        given = Roofline.of(roofline) if isinstance(roofline, str) else roofline
        self._estimator = Estimator(given)
        self._times = Times(self._estimator) if given is None else None
        self._lock = RLock()
        self._recorded: dict[str, Block] = {}
        self._slots: dict[str, Slot] = {}
        self._known: dict[frozenset[Any], Policy] = {}
        self._plan: Plan | None = None
        self._meter: Meter | None = None
        self._corrections = 0
        self._stepped = False
        self._flying: dict[str, WeakSet[_Flight]] = {}
        self._compiled = False
        self._in_flight = 1
        if plan is not None:
            self._adopt(plan)
            self._meter = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # What was measured is worth something on this device, and in the plan by now.
        del state["_lock"], state["_flying"], state["_times"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = RLock()
        self._flying = {}
        self._times = None

    @property
    def current(self) -> Plan | None:
        """Return the plan, once there is one."""
        return self._plan

    def slot_of(self, name: str) -> Slot:
        """Return what holds the policy of a block; until there is a plan, it keeps nothing."""
        with self._lock:
            return self._slots.setdefault(name, Slot(RECOMPUTE))

    def begin(self, name: str) -> Mapping[str, Any]:
        """
        Begin a call of a block.

        Returns:
            The options for the call; with what tells the cost of an operator where it is
            recorded, since there is no plan yet.
        """
        with self._lock:
            if self._plan is None:
                # The second step begins: also where a block had nothing to do in the first.
                if name in self._recorded and self._stepped:
                    self._adopt(self._solve())
                else:
                    flight = _Flight(self, name)
                    self._flying.setdefault(name, WeakSet()).add(flight)
                    cost = self._estimator if self._times is None else self._times.clock()
                    return {"cost": cost, "on_backward": flight}
            if self._meter is not None:
                self._meter.begin(name)
                measured = self._meter.result()
                if measured is not None:
                    self._correct(measured)
        return {"on_backward": functools.partial(self.needed, name)}

    def end(self, name: str, site: Site | None, cost: Cost | None) -> None:
        """
        End a call of a block.

        Args:
            name: Its name.
            site: What was recorded of it, or None where there was a plan.
            cost: What told its costs.
        """
        with self._lock:
            if site is not None:
                before = self._recorded.get(name)
                calls = max(len(self._flying.get(name, ())), before.calls if before else 1)
                self._recorded[name] = self._block(name, site.traces[0], calls * self._in_flight)
                if isinstance(cost, Clock) and self._times is not None:
                    self._times.add(name, cost)
            elif self._meter is not None:
                self._meter.end(name)

    def needed(self, name: str, flight: _Flight | None = None) -> None:
        """Note that the backward of a block begins, of a call that was recorded if one is given."""
        with self._lock:
            self._stepped = True
            if flight is not None:
                self._flying[name].discard(flight)
            if self._meter is not None:
                self._meter.backward(name)

    def adjust(self, measured: int) -> Plan:
        """Solve again, given the peak that was measured, and return that plan."""
        with self._lock:
            if self._plan is None:
                msg = "there is no plan to adjust yet: make one with plan(model, example_inputs)"
                raise ValueError(msg)
            self._adopt(self._plan.adjusted(measured))
            self._meter = None
            return self._plan

    @contextmanager
    def recording(
        self,
        *,
        compiled: bool = False,
        in_flight: int = 1,
        measured: bool = False,
        tell: Tell = quiet,
    ) -> Iterator[None]:
        """
        Record what is called within, and solve for that.

        Args:
            compiled: Whether the blocks are to be compiled.
            in_flight: How many such forwards come before the backward of the first.
            measured: Whether what is called runs, so that times can be measured.
            tell: Called with what is done, and how much of it.
        """
        with self._lock:
            before = {name: getattr(self, name) for name in _OF_A_RECORDING}
            self._plan, self._recorded, self._meter = None, {}, None
            self._compiled, self._in_flight = compiled, in_flight
            self._times = Times(self._estimator) if measured else None
            self._stepped = False
            self._flying = {}
        try:
            yield
            plan = self._solve(tell)
        except BaseException:
            self.__dict__.update(before)
            raise
        self._adopt(plan)

    def _block(self, name: str, trace: Trace, calls: int) -> Block:
        ops, gradients = tuple(trace.ops), 0
        if self._compiled:
            roofline = self._estimator.roofline or Roofline.of(torch.device("cpu"))
            ops, gradients = as_compiled(ops, trace.funcs, trace.returned, roofline)
        return Block(name, ops, trace.returned, gradients=gradients, calls=calls)

    def _solve(self, tell: Tell = quiet) -> Plan:
        roofline = self._estimator.roofline or Roofline.of(torch.device("cpu"))
        blocks = list(self._recorded.values())
        measured = self._times is not None and not must_agree(blocks)
        if self._times is not None and measured:
            blocks = self._times.settled(blocks)

        def transfer_ms(nbytes: int) -> float:
            # Away and back: one of the two is taken to be hidden behind what is computed.
            return nbytes / roofline.host_bytes * 1e3

        return make_plan(
            blocks,
            self._budget,
            roofline=roofline.name,
            offload_ms=transfer_ms if self._offload else None,
            measured=measured,
            tell=tell,
        )

    def _adopt(self, plan: Plan) -> None:
        self._plan = plan
        for name in plan.blocks:
            actions = plan.actions(name)
            key = frozenset(actions.items())
            slot = self.slot_of(name)
            slot.policy = self._known.setdefault(key, Planned(actions))
            slot.recomputes = plan.group(name).choice.ms > 0
        on_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call,unused-ignore]
        kinds = (group.kind for group in plan.groups)
        self._meter = None
        if on_cuda and not must_agree(kinds):
            self._meter = Meter(tuple(self._recorded))

    def _correct(self, measured: int) -> None:
        """Solve again where the plan was off."""
        plan = self._plan
        assert plan is not None
        self._meter = None
        off = abs(measured - plan.peak) / max(plan.peak, 1)
        if off <= _CLOSE or self._corrections >= _MOST_CORRECTIONS:
            return
        self._corrections += 1
        try:
            self._adopt(plan.adjusted(measured))
        except ValueError as error:
            warnings.warn(
                f"blocks hold {measured} bytes instead of the {plan.peak} of the plan, and "
                f"{error}; the plan stays as it is",
                stacklevel=2,
            )
