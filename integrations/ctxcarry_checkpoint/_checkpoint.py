"""The checkpoint function."""

from __future__ import annotations

import functools
import warnings
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from ctxcarry.boundaries.recompute import is_traced
from ctxcarry.errors import CtxCarryError
from ctxcarry_checkpoint._compiled import checkpoint_compiled
from ctxcarry_checkpoint._frame import Frame
from ctxcarry_checkpoint._given import same_policy
from ctxcarry_checkpoint._private import lacking
from ctxcarry_checkpoint._trace import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    from ctxcarry_checkpoint._policy import Policy
    from ctxcarry_checkpoint._record import Cost

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ("checkpoint", "kind_of", "run_block", "warn_unmatched")

_sites: WeakKeyDictionary[Any, dict[Any, Site]] = WeakKeyDictionary()
_lock = Lock()


def checkpoint(
    fn: Callable[P, T],
    /,
    *args: Any,
    policy: Any = None,
    preserve_rng_state: bool = True,
    early_stop: bool = True,
    debug: bool = False,
    **kwargs: Any,
) -> T:
    """
    Call ``fn(*args, **kwargs)`` and keep little of it: a backward makes the rest again.

    The recompute runs on whichever thread needs it, in every carried context of this
    call: meshes, allocators, process groups, function modes. Autograd's threads stay on.
    Results of operators that the backward does not need are not made again.

    From the second call on, a block is expected to call the operators that it has called
    before; where it does not, it is recorded anew.

    Args:
        fn: The block: a function, a bound method or a module.
        args: Its positional arguments.
        policy: Which results to keep: of `ctxcarry_checkpoint.policies`, a list of
            operators, or a function as ``create_selective_checkpoint_contexts`` takes it.
            None keeps none.
        preserve_rng_state: Whether random numbers are to be the same again.
        early_stop: Whether a recompute ends with the last tensor that is needed.
        debug: Whether to compare all values of forward and recompute, bit by bit, which
            takes time; an error then names the lines that called the first that differs.
        kwargs: Its keyword arguments.

    Returns:
        What `fn` returns.

    Raises:
        TypeError: If `fn` cannot be called, or the policy is none.
        RecomputeMismatchError: In the backward, if the recompute does something else.
        CheckpointMutationError: In the backward, if what it starts from was changed.
        CtxCarryError: If this torch lacks what is needed.
    """
    if not callable(fn):
        msg = f"checkpoint takes a callable, not {fn!r} of type {type(fn).__name__}"
        raise TypeError(msg)
    if is_traced():
        traced: T = checkpoint_compiled(
            fn, args, kwargs, policy, preserve_rng_state=preserve_rng_state
        )
        return traced
    found = same_policy(policy)
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    result: T = run_block(
        fn,
        args,
        kwargs,
        found,
        _site(fn, found),
        preserve_rng_state=preserve_rng_state,
        early_stop=early_stop,
        debug=debug,
    )
    return result


def run_block(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: Policy,
    site: Site,
    *,
    preserve_rng_state: bool = True,
    early_stop: bool = True,
    debug: bool = False,
    root: torch.nn.Module | None = None,
    cost: Cost | None = None,
    on_backward: Callable[[], object] | None = None,
) -> Any:
    """
    Call a block of which it is known where what is known of it is kept.

    Raises:
        CtxCarryError: If this torch lacks what is needed.
    """
    reason = lacking()
    if reason is not None:
        msg = f"{reason}, so that it has no selective checkpoint; use torch 2.5 or newer"
        raise CtxCarryError(msg)
    frame = Frame(
        fn,
        args,
        kwargs,
        site,
        policy,
        preserve_rng_state=preserve_rng_state,
        early_stop=early_stop,
        debug=debug,
        root=_root(fn) if root is None else root,
        cost=cost,
        on_backward=on_backward,
    )
    output = frame.forward()
    if not site.warned and site.traces:
        site.warned = True
        warn_unmatched(policy, site)
    return output


def warn_unmatched(policy: Policy, site: Site) -> None:
    """Warn of rules that no operator of the block has matched."""
    for message in policy.unmatched(site.traces[0].ops):
        warnings.warn(message, stacklevel=4)


def _root(fn: Callable[..., Any]) -> torch.nn.Module | None:
    if isinstance(fn, torch.nn.Module):
        return fn
    owner = getattr(fn, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _site(fn: Any, policy: Policy) -> Site:
    """Return what is known of a function and a policy; of a module, of all of its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    owner = getattr(fn, "__self__", fn)
    key = (
        kind_of(owner) if isinstance(owner, torch.nn.Module) else getattr(fn, "__code__", type(fn))
    )
    with _lock:
        of_policy = _sites.setdefault(policy, {})
        return of_policy.setdefault(key, Site())


def kind_of(module: torch.nn.Module) -> Any:
    """Return the class of a module, with those of its members if it only puts them together."""
    if isinstance(module, torch.nn.Sequential):
        return type(module), *map(kind_of, module)
    return type(module)
