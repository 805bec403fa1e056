"""The hidden argument of a Ray call: the caller's contexts as bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import ray

from ctxcarry._default import registry
from ctxcarry._redump import dumped
from ctxcarry._wire import encode

if TYPE_CHECKING:
    from ctxcarry._policy import Policy

__all__ = ("HIDDEN", "payload")

HIDDEN: Final = "_ctxcarry_contexts"
"""Its name. Added when Ray has checked the arguments, and taken out before the user's code."""

_LARGE: Final = 64 * 1024  # bytes; from here on the object store has it, once for all calls
_KEPT: Final = 8

_NOTHING: Final = len(encode({}))

_stored: OrderedDict[tuple[Any, bytes], Any] = OrderedDict()


def payload(policy: Policy | None) -> Any:
    """
    Return the contexts of this thread for a call, or None if there are none.

    Large ones are a reference into Ray's object store, where those of a hundred
    calls under the same contexts are kept once.
    """
    plan = registry.plan(policy)
    if plan.empty:
        return None
    data = dumped(plan)
    if len(data) <= _NOTHING:
        return None
    return data if len(data) < _LARGE else _reference(data)


def _reference(data: bytes) -> Any:
    # A reference means nothing once Ray has been shut down and started again.
    key = ray._private.worker.global_worker.current_cluster_and_job, data
    reference = _stored.pop(key, None)
    if reference is None:
        reference = ray.put(data)
    _stored[key] = reference
    while len(_stored) > _KEPT:
        _stored.popitem(last=False)
    return reference
