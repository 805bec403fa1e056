"""A selective checkpoint for the blocks of a model."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from ctxcarry_checkpoint._block_forward import is_on, put_on, take_off
from ctxcarry_checkpoint._blocks import find_blocks
from ctxcarry_checkpoint._budget import check_budget
from ctxcarry_checkpoint._checkpoint import kind_of, run_block
from ctxcarry_checkpoint._compiled import compiled_around, uncompiled
from ctxcarry_checkpoint._fake import run_fake, run_real
from ctxcarry_checkpoint._given import Slot, same_policy
from ctxcarry_checkpoint._planned import Planner
from ctxcarry_checkpoint._progress import showing
from ctxcarry_checkpoint._trace import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from ctxcarry_checkpoint._cost import Roofline
    from ctxcarry_checkpoint._plan import Plan
    from ctxcarry_checkpoint._policy import Policy

__all__ = ("SelectiveCheckpoint",)

_PASSES = 3
_RUNNING = "what the model runs"


class SelectiveCheckpoint:
    """
    Checkpoint the blocks of a model, by a policy or for a budget of memory.

        engine = SelectiveCheckpoint(budget="4GiB")
        engine.apply(model, blocks="layers.*")

    With a budget, what to keep is solved for: the results that spare the most time, of all
    blocks together. Where no `plan` was made before, the first step keeps nothing and is
    recorded, and what is solved for it holds from the second step on.

    One engine is for one model. It may be applied before or after ``fully_shard``, FSDP or
    DDP, and before ``torch.compile``. What is compiled is not recorded: with a budget, make its
    `plan` before.

    Args:
        policy: Which results to keep, see `checkpoint`. None, without a budget, keeps none.
        budget: What blocks may hold for the backward at most: bytes, text such as ``"4GiB"``,
            or a ratio of what is held without checkpoints. It counts what all blocks keep and
            what the backward of one makes again, and not their arguments.
        plan: A plan that was made before, as by `Plan.from_json`: it is followed as it is. Where
            ranks of one group call collectives in their blocks, all have to follow one plan.
        offload: Whether a budget may be met by copies in pinned memory of the CPU, too.
        roofline: The speed of the device, for a budget, or the name of a card such as
            ``"H100"``, by which to estimate how long operators take. If None, the first step
            measures them, and a `plan` made before estimates by the device itself.
        preserve_rng_state: Whether random numbers are to be the same in a recompute.
        early_stop: Whether a recompute ends with the last tensor that is needed.
        debug: Whether to compare all values of forward and recompute, which takes time.

    Raises:
        ValueError: If there are several of policy, budget and plan, or the budget is none.
        TypeError: If the policy is none.
    """

    def __init__(
        self,
        policy: Any = None,
        *,
        budget: str | float | None = None,
        plan: Plan | None = None,
        offload: bool = False,
        roofline: Roofline | str | None = None,
        preserve_rng_state: bool = True,
        early_stop: bool = True,
        debug: bool = False,
    ) -> None:
        given = {"policy": policy, "budget": budget, "plan": plan}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1:
            msg = (
                f"SelectiveCheckpoint takes one of policy, budget and plan, and was given "
                f"{' and '.join(given)}: a plan says what to keep, and a budget is solved for one"
            )
            raise ValueError(msg)
        if budget is not None:
            check_budget(budget)
        self.preserve_rng_state = preserve_rng_state
        self.early_stop = early_stop
        self.debug = debug
        self._slot = Slot(same_policy(policy))
        self._planner: Planner | None = None
        if plan is not None:
            self._planner = Planner(plan.budget, plan=plan)
        elif budget is not None:
            self._planner = Planner(budget, offload=offload, roofline=roofline)
        self._names: dict[str, nn.Module] = {}
        self._sites: dict[Any, Site] = {}
        self._lock = Lock()

    def apply(self, model: nn.Module, blocks: str | Sequence[str] | None = None) -> tuple[str, ...]:
        """
        Have the blocks of a model checkpointed from now on.

        Their names, parameters, hooks and ``state_dict`` stay what they are.

        Args:
            model: The model.
            blocks: A pattern of names, or several: ``"layers.*"`` finds those of TorchTitan
                (``layers.0``) and of Hugging Face (``model.layers.0``). None finds the
                repeated blocks.

        Returns:
            The names of the blocks.

        Raises:
            ValueError: If no block is found, or one has a checkpoint already.
        """
        found = find_blocks(model, blocks)
        self._check_names(found)
        done: list[nn.Module] = []
        try:
            for name, module in found.items():
                put_on(module, name, self)
                done.append(module)
        except ValueError:
            for module in done:
                take_off(module, self)
            raise
        self._names |= found
        return tuple(found)

    def remove(self, model: nn.Module) -> None:
        """
        Take the checkpoints of this engine off a model.

        Raises:
            ValueError: If it has none.
        """
        taken = {module for module in model.modules() if take_off(module, self)}
        if not taken:
            msg = f"this {type(model).__name__} has no checkpoint of this engine"
            raise ValueError(msg)
        self._names = {n: m for n, m in self._names.items() if m not in taken}

    def plan(
        self,
        model: nn.Module,
        example_inputs: Any,
        *,
        blocks: str | Sequence[str] | None = None,
        compiled: bool | None = None,
        in_flight: int = 1,
        profile: bool = False,
        progress: bool | None = None,
    ) -> Plan:
        """
        Solve for the budget, without memory and without running anything, and use that.

        How long operators take is estimated then, unless ``profile`` has them measured.

        Args:
            model: The model. On the ``meta`` device it has other operators than on a GPU, for
                attention above all; a plan made there is a rough one.
            example_inputs: What it is called with: a tensor, a tuple of arguments, or a dict of
                keyword arguments. Only sizes and types matter.
            blocks: Which blocks, as for `apply`; those that it was applied to if None.
            compiled: Whether the blocks will be compiled: then what lies between products is
                fused, which takes other times and less memory. None asks whether they are
                compiled already.
            in_flight: How many forwards come before the backward of the first of them, as the
                microbatches of a pipeline do. A first step that is recorded counts them.
            profile: Whether to run the forward of the model three times, with its parameters
                and the values of the example inputs, and measure each operator. Buffers and
                random numbers stay what they are.
            progress: Whether to show on the standard error how far it is, once it has taken a
                second. None does so on a terminal, if rich is installed.

        Returns:
            The plan. Blocks follow it, in this model or another one with the same names.

        Raises:
            ValueError: If there is no budget, nothing is in flight, or what cannot run is to
                be measured.
            BudgetError: If nothing fits into it; it says what would.
            ImportError: Progress is wanted, and rich is missing.
        """
        if in_flight < 1:
            msg = f"in_flight is how many forwards await their backward, so 1 or more: {in_flight}"
            raise ValueError(msg)
        planner = self._planner
        if planner is None:
            msg = "a plan is solved for a budget: SelectiveCheckpoint(budget=...)"
            raise ValueError(msg)
        with self._applied(model, blocks):
            around = compiled_around(model, functools.partial(is_on, engine=self))
            if compiled is None:
                compiled = bool(around)
            if profile and compiled:
                msg = (
                    "profile=True measures each operator, and compiled blocks do not run them one "
                    "by one: leave one of the two out"
                )
                raise ValueError(msg)
            with (
                showing(wanted=progress) as tell,
                planner.recording(
                    compiled=compiled, in_flight=in_flight, measured=profile, tell=tell
                ),
                uncompiled(around),
            ):
                tell(_RUNNING, 0, 1)
                if not profile:
                    run_fake(model, example_inputs)
                for number in range(_PASSES if profile else 0):
                    tell(_RUNNING, number, _PASSES)
                    run_real(model, example_inputs)
                tell(_RUNNING, 1, 1)
        plan = planner.current
        assert plan is not None
        return plan

    def adjust(self, measured_bytes: int) -> Plan:
        """
        Solve for the budget again, given the peak that a step was measured to have.

        On a GPU the engine does that by itself in the first steps, but for compiled blocks,
        which it does not see run. Those with another policy afterwards are compiled anew.

        Args:
            measured_bytes: The most that the blocks held beyond what was there before them:
                ``torch.cuda.max_memory_allocated()`` within forward and backward, less
                ``torch.cuda.memory_allocated()`` before, where gradients were there too.

        Returns:
            The new plan.

        Raises:
            ValueError: If there is no plan.
            BudgetError: Nothing fits with so much more than was predicted.
        """
        planner = self._planner
        if planner is None:
            msg = "there is no plan to adjust without a budget: SelectiveCheckpoint(budget=...)"
            raise ValueError(msg)
        return planner.adjust(measured_bytes)

    def _check_names(self, found: Mapping[str, nn.Module]) -> None:
        """Refuse blocks that the plan does not have."""
        plan = None if self._planner is None else self._planner.current
        missing = [name for name in found if plan is not None and name not in plan.blocks]
        if plan is not None and missing:
            msg = (
                f"the plan has no block {missing[0]!r}. It has {', '.join(plan.blocks)}. Make a "
                "plan of this model, or give the blocks that it is of"
            )
            raise ValueError(msg)

    @contextmanager
    def _applied(self, model: nn.Module, blocks: str | Sequence[str] | None) -> Iterator[None]:
        """Have the blocks checkpointed for a while, unless they are."""
        if any(is_on(module, self) for module in model.modules()):
            yield
            return
        self.apply(model, blocks)
        try:
            yield
        finally:
            self.remove(model)

    def slot_of(self, name: str) -> Slot:
        """Return what holds the policy of a block."""
        return self._slot if self._planner is None else self._planner.slot_of(name)

    def call(
        self,
        name: str,
        module: nn.Module,
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a block."""
        planner = self._planner
        options: Mapping[str, Any] = {} if planner is None else planner.begin(name)
        recorded = "cost" in options
        policy = self.slot_of(name).policy
        # What is recorded for a plan is recorded for each block.
        site = Site() if recorded else self._site(module, policy)
        output = run_block(
            own,
            args,
            kwargs,
            policy,
            site,
            preserve_rng_state=self.preserve_rng_state,
            early_stop=self.early_stop,
            debug=self.debug,
            root=module,
            **options,
        )
        if planner is not None:
            planner.end(name, site if recorded else None, options.get("cost"))
        return output

    def _site(self, module: nn.Module, policy: Policy) -> Site:
        """Return what is known of a block: the same for all of a class with one policy."""
        key = kind_of(module), policy
        with self._lock:
            return self._sites.setdefault(key, Site())

    def __deepcopy__(self, memo: dict[int, Any]) -> SelectiveCheckpoint:
        # A copy of a model goes on with the same engine.
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"], state["_sites"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sites = {}
        self._lock = Lock()
