"""
Which results of a block are kept: rules, and how they are put together.

Each function returns a `Policy`. Of ``a | b``, the first one with an opinion decides, and
what none has an opinion of is recomputed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry_checkpoint._custom import Custom, PerForward, label_of
from ctxcarry_checkpoint._match import Names, is_operator, name_of, names_of
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._policy import First, Others, Policy
from ctxcarry_checkpoint._products import (
    ATTENTION,
    COLLECTIVES,
    DEVICE_TO_HOST,
    MATMULS,
    SizeTest,
    is_device_to_host,
)
from ctxcarry_checkpoint._rules import EveryKth, Rule, When, patterns
from ctxcarry_checkpoint._torchtitan import linear_shapes, torchtitan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = (
    "Policy",
    "as_policy",
    "attention",
    "collectives",
    "custom",
    "device_to_host",
    "first",
    "full",
    "linear_shapes",
    "matmuls",
    "matmuls_by_shape",
    "modules",
    "none",
    "offload",
    "others",
    "per_forward",
    "recompute",
    "regions",
    "save",
    "torchtitan",
)

_SHOWN = 4


def save(
    *what: Any,
    modules: str | Sequence[str] | None = None,
    regions: str | Sequence[str] | None = None,
) -> Policy:
    """
    Save the results of operators.

    Args:
        what: Overloads, packets (which stand for all their overloads), higher-order operators,
            and names such as ``"aten.mm"``, ``"aten.mm.default"`` or
            ``"aten._scaled_dot_product_*"``. None stands for all operators.
        modules: Patterns of the modules, by their names within the block, as in
            ``"attention"`` (and all within it) or ``"*.wq"``. ``*`` stands for one part of a
            name, ``**`` for any number, ``""`` for the block alone, outside its modules.
        regions: Patterns of regions, one of which is open.

    Raises:
        TypeError: If something else than an operator is given.
        ValueError: If a name is that of no operator, or nothing is given at all.
    """
    return _rule("save", Action.SAVE, what, modules, regions)


def recompute(
    *what: Any,
    modules: str | Sequence[str] | None = None,
    regions: str | Sequence[str] | None = None,
) -> Policy:
    """
    Recompute the results of operators, whatever a policy behind this one says.

    Args:
        what: As `save` has them.
        modules: As `save` has them.
        regions: As `save` has them.

    Raises:
        TypeError: If something else than an operator is given.
        ValueError: If a name is that of no operator, or nothing is given at all.
    """
    return _rule("recompute", Action.RECOMPUTE, what, modules, regions)


def offload(
    *what: Any,
    modules: str | Sequence[str] | None = None,
    regions: str | Sequence[str] | None = None,
) -> Policy:
    """
    Keep the results of operators in memory of the CPU.

    Args:
        what: As `save` has them.
        modules: As `save` has them.
        regions: As `save` has them.

    Raises:
        TypeError: If something else than an operator is given.
        ValueError: If a name is that of no operator, or nothing is given at all.
    """
    return _rule("offload", Action.OFFLOAD, what, modules, regions)


def matmuls(
    every: int = 2,
    action: Action = Action.SAVE,
    start: int = 0,
    *,
    modules: str | Sequence[str] | None = None,
    regions: str | Sequence[str] | None = None,
) -> Policy:
    """
    Save every k-th product of matrices, counted anew in each forward of a block.

    Args:
        every: k; 1 for all of them.
        action: What becomes of these. Of the others this has no opinion.
        start: How many are left out before the first one.
        modules: As `save` has them; only products there are counted.
        regions: As `save` has them; only products there are counted.

    Raises:
        ValueError: If `every` is below 1, or `start` below 0.
    """
    if every < 1 or start < 0:
        msg = f"every is at least 1, and start at least 0; given {every} and {start}"
        raise ValueError(msg)
    label = f"matmuls(every={every}, action={action.name}, start={start}"
    rule = Rule(
        f"{label}{_options(modules, regions)})",
        action,
        MATMULS,
        patterns(modules, "modules"),
        patterns(regions, "regions"),
    )
    return EveryKth(rule, every, start)


def matmuls_by_shape(
    *shapes: tuple[int, int],
    when: Callable[[int, int, int], bool] | None = None,
    action: Action = Action.RECOMPUTE,
) -> Policy:
    """
    Recompute the products of matrices that have certain sizes.

    Args:
        shapes: Inner size and columns of the products, as in ``(in_features, out_features)``;
            `linear_shapes` has those of modules.
        when: Takes rows, inner size and columns of a product, and says whether it is meant
            too, as in ``lambda rows, inner, columns: columns <= 64``.
        action: What becomes of these.

    Raises:
        TypeError: If a shape is not two numbers.
        ValueError: If there are neither shapes nor `when`.
    """
    for shape in shapes:
        if not (isinstance(shape, tuple) and len(shape) == 2):  # noqa: PLR2004
            msg = f"a shape is (in_features, out_features); given {shape!r}"
            raise TypeError(msg)
    if not shapes and when is None:
        msg = "matmuls_by_shape() needs shapes, or when=, to mean any product"
        raise ValueError(msg)
    given = [*map(repr, shapes), *([] if when is None else [f"when={label_of(when)}"])]
    label = f"matmuls_by_shape({', '.join(given)}, action={action.name})"
    test = SizeTest(frozenset((int(inner), int(columns)) for inner, columns in shapes), when)
    return When(Rule(label, action, MATMULS), test, sizes=True)


def attention(action: Action = Action.SAVE) -> Policy:
    """
    Save what attention returns: all variants of torch's, and flex attention.

    Args:
        action: What becomes of it.
    """
    return Rule(f"attention({action.name})", action, ATTENTION)


def collectives(action: Action = Action.SAVE) -> Policy:
    """
    Save what ranks exchange, so that a recompute does not exchange it again.

    Args:
        action: What becomes of it.
    """
    return Rule(f"collectives({action.name})", action, COLLECTIVES)


def device_to_host(action: Action = Action.SAVE) -> Policy:
    """
    Save what is brought from a device to the CPU, which a recompute would wait for.

    Args:
        action: What becomes of it.
    """
    rule = Rule(f"device_to_host({action.name})", action, DEVICE_TO_HOST, optional=True)
    return When(rule, is_device_to_host)


def modules(pattern: str | Sequence[str], action: Action = Action.SAVE) -> Policy:
    """
    Save all results of some modules.

    Args:
        pattern: Patterns of their names within the block, as `save` has them.
        action: What becomes of the results.
    """
    label = f"modules({pattern!r}, {action.name})"
    return Rule(label, action, modules=patterns(pattern, "modules"))


def regions(pattern: str | Sequence[str], action: Action = Action.SAVE) -> Policy:
    """
    Save all results of some regions.

    Args:
        pattern: Patterns of the names that ``region(name)`` has given.
        action: What becomes of the results.
    """
    label = f"regions({pattern!r}, {action.name})"
    return Rule(label, action, regions=patterns(pattern, "regions"))


def custom(function: Callable[..., Any]) -> Policy:
    """
    Ask a function about every call, as torch's selective checkpoints do.

    It is asked in forwards only, so a recompute cannot get another answer.

    Args:
        function: Takes a context with `op_output` and `is_recompute`, the overload and the
            arguments. It returns a ``CheckpointPolicy``, an `Action`, or True to save and
            False to recompute. One that counts belongs in `per_forward`.

    Raises:
        TypeError: If it cannot be called.
    """
    return Custom(_callable(function, "custom"))


def per_forward(make: Callable[[], Callable[..., Any]]) -> Policy:
    """
    Ask a new function in each forward of a block, which may count.

    Args:
        make: Returns what `custom` takes.

    Raises:
        TypeError: If it cannot be called.
    """
    return PerForward(_callable(make, "per_forward"))


def first(*policies: Policy | Action) -> Policy:
    """
    Ask several policies, of which the first with an opinion decides, as ``a | b`` does.

    Those behind it do not count that call.

    Args:
        policies: What `as_policy` takes, in their order.
    """
    return First(*map(as_policy, policies))


def others(action: Action) -> Policy:
    """
    Do the same with everything; the last one of several, if it is not to be recomputed.

    Args:
        action: What becomes of the results.
    """
    return Others(action)


def full() -> Policy:
    """Recompute everything."""
    return Others(Action.RECOMPUTE)


def none() -> Policy:
    """Recompute nothing: save everything."""
    return Others(Action.SAVE)


def as_policy(given: object) -> Policy:
    """
    Return the policy that something stands for.

    Args:
        given: A `Policy`, an `Action` for everything, operators to save (as torch's
            selective checkpoints take them, and packets and names), or a function as `custom`
            takes it.

    Raises:
        TypeError: If it is something else.
        ValueError: If a name is that of no operator.
    """
    if isinstance(given, Policy):
        return given
    if isinstance(given, Action):
        return Others(given)
    if isinstance(given, (list, tuple, set, frozenset)):
        return save(*given) if given else full()
    if is_operator(given) or isinstance(given, str):
        return save(given)
    if not callable(given) or isinstance(given, type):
        msg = (
            "a policy is one of ctxcarry_checkpoint.policies, an Action, a list of operators to "
            f"save, or a function (context, op, *args, **kwargs); given {given!r}"
        )
        raise TypeError(msg)
    name = getattr(given, "__name__", "")
    if name in __all__ and globals()[name] is given:
        msg = f"policies.{name} returns a policy, and is none; call it: policies.{name}(...)"
        raise TypeError(msg)
    return Custom(given)


def _rule(
    verb: str,
    action: Action,
    what: Iterable[Any],
    modules: str | Sequence[str] | None,
    regions: str | Sequence[str] | None,
) -> Policy:
    given = list(what)
    if not given and modules is None and regions is None:
        msg = (
            f"{verb}() names no operators, modules or regions; "
            f"others(Action.{action.name}) is for all of them"
        )
        raise ValueError(msg)
    shown = [repr(each if isinstance(each, str) else name_of(each)) for each in given]
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"and {len(shown) - _SHOWN} more"]
    label = f"{verb}({(', '.join(shown) + _options(modules, regions)).removeprefix(', ')})"
    names = names_of(given) if given else Names()
    return Rule(label, action, names, patterns(modules, "modules"), patterns(regions, "regions"))


def _options(modules: str | Sequence[str] | None, regions: str | Sequence[str] | None) -> str:
    options = {"modules": modules, "regions": regions}
    return "".join(f", {name}={each!r}" for name, each in options.items() if each is not None)


def _callable(given: Any, name: str) -> Callable[..., Any]:
    if not callable(given):
        msg = f"{name}() takes a function; given {given!r}, a {type(given).__name__}"
        raise TypeError(msg)
    function: Callable[..., Any] = given
    return function
