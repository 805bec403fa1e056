"""What ``ray.init`` is given, so that a program's workers are instrumented as the driver is."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("with_setup_hook",)

_KEY = "worker_process_setup_hook"


def with_setup_hook(runtime_env: Any) -> dict[str, Any]:
    """
    Return `runtime_env` so that each worker installs what is installed here.

    A hook that is there already runs afterwards.
    """
    from ctxcarry.boundaries._install import installed  # noqa: PLC0415 - which loads our caller

    environment = dict(runtime_env or {})
    own = environment.get(_KEY)
    if getattr(own, "__ctxcarry_hook__", False):
        return environment
    environment[_KEY] = _hook(installed(), own)
    return environment


def _hook(names: tuple[str, ...], own: str | Callable[[], object] | None) -> Callable[[], None]:
    """Return a function that Ray pickles by value and each worker calls when it starts."""

    def set_up_ctxcarry() -> None:
        import ctxcarry  # noqa: PLC0415 - in the worker

        ctxcarry.install(*names)
        if isinstance(own, str):
            module, _, name = own.rpartition(".")
            getattr(import_module(module), name)()
        elif own is not None:
            own()

    set_up_ctxcarry.__ctxcarry_hook__ = True  # type: ignore[attr-defined]
    return set_up_ctxcarry
