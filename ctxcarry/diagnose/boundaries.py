"""
The boundaries that ``doctor`` crosses.

To have ``doctor`` show one more, write how work crosses it (a `Cross`, in
`ctxcarry.diagnose.crossings`) for both ways and add a `Boundary` to `BOUNDARIES`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import ctxcarry
from ctxcarry._catalog import ENGINES_OWN
from ctxcarry.boundaries import _install
from ctxcarry.diagnose.autograd_crossings import (
    autograd_installed,
    over_backward,
    over_recompute,
    single_hooks,
)
from ctxcarry.diagnose.crossings import (
    FAR,
    FAR_RAY,
    Cross,
    Crossing,
    Handing,
    by_worker,
    carrying_pool,
    installed,
    over_bound_thread,
    over_joblib,
    over_loop,
    over_pool,
    over_thread,
    over_thread_pool,
    over_torch_future,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("BOUNDARIES", "Boundary", "Cross", "Crossing", "Handing", "as_found", "is_here")


@dataclass(frozen=True)
class Boundary:
    """
    A place where work moves.

    Attributes:
        name: The name that the table gives it.
        plain: Crosses it as the standard library or the framework does.
        carried: Crosses it with ctxcarry.
        plain_code: The plain way, in a few words of code.
        carried_code: The carried way.
        needs: The package without which there is no such boundary.
        far: Whether the work moves to another process.
        opened: Entered around all crossings.
        owned: Contexts that it leaves alone, since the engine behind it sets them itself.
    """

    name: str
    plain: Cross
    carried: Cross
    plain_code: str
    carried_code: str
    needs: str | None = None
    far: bool = False
    opened: Callable[[], AbstractContextManager[object]] = nullcontext
    owned: frozenset[str] = frozenset()


def is_here(boundary: Boundary) -> bool:
    """Say whether what `boundary` needs is installed."""
    if boundary.needs is None:
        return True
    try:
        return find_spec(boundary.needs) is not None
    except ValueError:  # the module was made unimportable
        return False


@contextmanager
def as_found() -> Iterator[None]:
    """Take all instrumentation off for the time being: the plain way must be plain."""
    installed, decorated = ctxcarry.installed(), _install._decorated
    engine = sys.modules.get("ctxcarry.boundaries.autograd_engine")
    hooks = engine is not None and engine.boundary.hooks
    if engine is not None and hooks:
        engine.stop_serving_hooks()
    if installed:
        ctxcarry.uninstall(*installed)
    try:
        yield
    finally:
        if not decorated:
            # All of it, what @carry_context put on for a probe included.
            ctxcarry.uninstall()
        if installed:
            ctxcarry.install(*installed)
        if engine is not None and hooks:
            engine.serve_hooks()


# ``backward()`` itself takes function modes off, the default device among them.
_IN_BACKWARD: Final = ENGINES_OWN | {"torch.function_modes", "torch.default_device"}


def _as_hook(fn: Callable[..., Any]) -> Callable[..., Any]:
    return ctxcarry.autograd.hook(fn)  # which needs torch


def _context_fn() -> Callable[[], Any]:
    return ctxcarry.autograd.context_fn()


BOUNDARIES: Final = (
    Boundary(
        "executor",
        over_pool(),
        over_pool(carrying_pool),
        "ThreadPoolExecutor()",
        "ctxcarry.executor()",
    ),
    Boundary(
        "wrap_executor",
        over_pool(),
        over_pool(submit=lambda pool, work: ctxcarry.wrap_executor(pool).submit(work)),
        "ThreadPoolExecutor()",
        "ctxcarry.wrap_executor(pool)",
    ),
    Boundary(
        "bind",
        over_bound_thread(),
        over_bound_thread(ctxcarry.bind),
        "Thread(target=fn)",
        "Thread(target=ctxcarry.bind(fn))",
    ),
    Boundary(
        "carry_context",
        over_pool(),
        over_pool(prepare=ctxcarry.carry_context),
        "pool.submit(fn)",
        "@ctxcarry.carry_context",
    ),
    Boundary(
        "install",
        over_pool(),
        installed("executor", over_pool()),
        "pool.submit(fn)",
        'ctxcarry.install("executor")',
    ),
    Boundary(
        "Thread",
        over_thread(lambda run: threading.Thread(target=run)),
        over_thread(lambda run: ctxcarry.Thread(target=run)),
        "threading.Thread(target=fn)",
        "ctxcarry.Thread(target=fn)",
    ),
    Boundary(
        "Timer",
        over_thread(lambda run: threading.Timer(0, run)),
        over_thread(lambda run: ctxcarry.Timer(0, run)),
        "threading.Timer(0, fn)",
        "ctxcarry.Timer(0, fn)",
    ),
    Boundary(
        "thread_pool",
        over_thread_pool,
        installed("thread_pool", over_thread_pool),
        "ThreadPool().apply(fn)",
        'ctxcarry.install("thread_pool")',
    ),
    Boundary(
        "asyncio",
        over_loop(lambda work: asyncio.get_running_loop().run_in_executor(None, work)),
        over_loop(lambda work: ctxcarry.run_in_executor(None, work)),
        "loop.run_in_executor(...)",
        "ctxcarry.run_in_executor(...)",
    ),
    Boundary(
        "to_thread",
        over_loop(asyncio.to_thread),
        over_loop(ctxcarry.to_thread),
        "asyncio.to_thread(fn)",
        "ctxcarry.to_thread(fn)",
    ),
    Boundary(
        "process",
        by_worker(FAR, FAR.plain),
        by_worker(FAR, FAR.carried),
        "ProcessPoolExecutor()",
        'ctxcarry.executor(kind="process")',
        far=True,
        opened=FAR.opened,
    ),
    Boundary(
        "ray",
        by_worker(FAR_RAY, FAR_RAY.plain),
        by_worker(FAR_RAY, FAR_RAY.carried),
        "ray.remote(cls)",
        "ctxcarry.ray.remote(cls)",
        needs="ray",
        far=True,
        opened=FAR_RAY.opened,
    ),
    Boundary(
        "joblib",
        over_joblib,
        installed("joblib", over_joblib),
        "joblib threading backend",
        'ctxcarry.install("joblib")',
        needs="joblib",
    ),
    Boundary(
        "torch.futures",
        over_torch_future,
        installed("torch.futures", over_torch_future),
        "Future.then(fn)",
        'ctxcarry.install("torch.futures")',
        needs="torch",
    ),
    Boundary(
        "autograd",
        over_backward(),
        over_backward(autograd_installed),
        "Function.backward",
        'ctxcarry.install("autograd")',
        needs="torch",
        owned=_IN_BACKWARD,
    ),
    Boundary(
        "hook",
        over_backward(by_hook=True),
        over_backward(single_hooks, prepare=_as_hook, by_hook=True),
        "tensor.register_hook(fn)",
        "ctxcarry.autograd.hook(fn)",
        needs="torch",
        owned=_IN_BACKWARD,
    ),
    Boundary(
        "recompute",
        over_recompute(),
        over_recompute(autograd_installed),
        "checkpoint(fn, ...)",
        'ctxcarry.install("autograd")',
        needs="torch",
        owned=ENGINES_OWN,
    ),
    Boundary(
        "context_fn",
        over_recompute(),
        over_recompute(context_fn=_context_fn),
        "checkpoint(fn, ...)",
        "ctxcarry.autograd.context_fn()",
        needs="torch",
        owned=ENGINES_OWN,
    ),
)
