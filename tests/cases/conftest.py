"""The ways in which ctxcarry cures a case, and a check that none of them leaves a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from pathlib import Path

import pytest

import ctxcarry

# Their carriers must not appear in the midst of a test that compares.
for _name in ("torch", "torch.distributed.device_mesh", "triton", "spmd_types"):
    with suppress(ModuleNotFoundError):
        import_module(_name)


def _state():
    found = {
        "variables": {var.name: id(value) for var, value in copy_context().items()},
        "installed": ctxcarry.installed(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        meshes = torch.distributed.device_mesh._mesh_resources.mesh_stack
        found["grad"] = torch.is_grad_enabled()
        found["inference"] = torch.is_inference_mode_enabled()
        found["autocast"] = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        found["function modes"] = torch.overrides._get_current_function_mode_stack()
        found["meshes"] = list(meshes)
        found["process group"] = torch.distributed.is_initialized()
    if "spmd_types._state" in sys.modules:
        fields = vars(sys.modules["spmd_types._state"]._tls)
        found["spmd"] = list(fields.get("mesh_stack", ())), fields.get("current_mode")
    return found


@pytest.fixture(autouse=True)
def _clean_thread():
    """Check that a test leaves the main thread as it found it."""
    before = _state()
    yield
    assert before == _state()


@pytest.fixture
def plain():
    """Give a way to run a function in a plain pool of one thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda fn, *args: pool.submit(fn, *args).result()


def _executor():
    with ctxcarry.executor(1) as pool:
        yield lambda fn, *args: pool.submit(fn, *args).result()


def _carry_context():
    with ThreadPoolExecutor(1) as pool:

        def run(fn, *args):
            # First, as a decorator does: it is what has `pool.submit` carry.
            decorated = ctxcarry.carry_context(fn)
            return pool.submit(decorated, *args).result()

        yield run


def _bind():
    def hand_over(fn, *args):
        results, errors = [], []

        def work():
            try:
                results.append(fn(*args))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=ctxcarry.bind(work))
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    yield hand_over


def _install():
    with ThreadPoolExecutor(1) as pool:
        ctxcarry.install("executor")
        try:
            yield lambda fn, *args: pool.submit(fn, *args).result()
        finally:
            ctxcarry.uninstall("executor")


_WAYS = {
    "executor": _executor,
    "carry_context": _carry_context,
    "bind": _bind,
    "install": _install,
}


@pytest.fixture(params=list(_WAYS))
def way(request):
    """
    Give each way in which ctxcarry runs a function on another thread.

    In the end it must not keep what it carried: a way that always runs in the
    context of the first hand-over would cure the cases as well.
    """
    yield from _WAYS[request.param]()


@pytest.fixture(scope="session")
def told_by(tmp_path_factory, ray_address):
    """Run a program with a module of its own, which uses Ray; give the JSON of its lines."""

    def run(name, module, program):
        directory = tmp_path_factory.mktemp(name)
        (directory / f"{name}_work.py").write_text(module)
        (directory / "program.py").write_text(program)
        path = os.pathsep.join([str(Path(ctxcarry.__file__).parents[1]), str(directory)])
        done = subprocess.run(
            [sys.executable, str(directory / "program.py")],
            env={**os.environ, "RAY_ADDRESS": ray_address, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run
