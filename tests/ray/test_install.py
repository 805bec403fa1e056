"""install("ray"): programs that know nothing of ctxcarry carry, in their workers as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctxcarry

pytest.importorskip("torch")
pytest.importorskip("ray")

pytestmark = pytest.mark.ray

START = """
import json
import ray

def start(**options):
    ray.init(log_to_driver=False, logging_level="ERROR", **options)

def tell(name, value):
    print(json.dumps([name, value]), flush=True)
"""

# Nothing here knows of ctxcarry. Ray pickles what is remote by value, and a ContextVar
# cannot be pickled: so it lives in a module that a worker imports.
AMBIENT = """
import contextvars
import torch

variable = contextvars.ContextVar("variable", default="unset")
hooked = []

def seen():
    return variable.get(), torch.is_grad_enabled()

def hook():
    hooked.append("string")

class Base:
    def __init__(self):
        variable.set("base")
        torch.set_grad_enabled(False)

    def method(self):
        return seen()

    def stream(self):
        for _ in range(2):
            yield seen()
"""

SUBJECT = """
import ambient, ray, torch

@ray.remote
def task():
    return ambient.seen()

@ray.remote
def was_hooked():
    return ambient.seen(), ambient.hooked

@ray.remote
def nest():
    ambient.variable.set("in the worker")

    @ray.remote
    def inner():
        return ambient.seen()

    @ray.remote
    class Inner:
        def __init__(self):
            torch.set_grad_enabled(False)

        def method(self):
            return ambient.seen()

    actor = Inner.options(max_concurrency=2).remote()
    with torch.no_grad():
        found = ray.get([inner.remote(), task.remote()])
    return [*found, ray.get(actor.method.remote())]

@ray.remote
class Threaded(ambient.Base):
    pass

@ray.remote
class Async(ambient.Base):
    async def method(self):
        return ambient.seen()

@ray.remote(concurrency_groups={"io": 1})
class Grouped(ambient.Base):
    @ray.method(concurrency_group="io")
    def method(self):
        return ambient.seen()
"""

CALLS = """
import torch
from start import start, tell
import ambient, ray, subject

start()

@ray.remote
def local():
    return ambient.seen()

actors = {
    "threaded": subject.Threaded.options(max_concurrency=2).remote(),
    "async": subject.Async.remote(),
    "grouped": subject.Grouped.remote(),
}
for name, actor in actors.items():
    tell(f"{name}, nothing set", ray.get(actor.method.remote()))
ambient.variable.set("caller")
with torch.no_grad():
    tell("task", ray.get(subject.task.remote()))
    tell("local task", ray.get(local.options(num_cpus=1).remote()))
tell("task, grad", ray.get(subject.task.remote()))
for name, actor in actors.items():
    tell(name, ray.get(actor.method.remote()))
stream = actors["threaded"].stream.options(num_returns="streaming").remote()
tell("stream", [ray.get(item) for item in stream])
for actor in actors.values():
    ray.kill(actor)
tell("nested", ray.get(subject.nest.remote()))
ray.shutdown()
"""

CARRIED = {
    "threaded, nothing set": ["base", False],
    "async, nothing set": ["base", False],
    "grouped, nothing set": ["base", False],
    "task": ["caller", False],
    "local task": ["caller", False],
    "task, grad": ["caller", True],
    "threaded": ["caller", False],
    "async": ["caller", False],
    "grouped": ["caller", False],
    "stream": [["caller", False], ["caller", False]],
    "nested": [["in the worker", False], ["in the worker", False], ["in the worker", False]],
}
LOST = ["unset", True]

BEFORE = "import ctxcarry; ctxcarry.install('ray')"
AFTER = "import subject, ctxcarry; ctxcarry.install('ray')"


@pytest.fixture
def run(tmp_path, ray_address):
    """Give a function that runs a program, after some lines, and returns what it told."""
    (tmp_path / "start.py").write_text(START)
    (tmp_path / "ambient.py").write_text(AMBIENT)
    (tmp_path / "subject.py").write_text(SUBJECT)
    root = str(Path(ctxcarry.__file__).parents[1])

    def run(program, first="", address=ray_address):
        path = tmp_path / "program.py"
        path.write_text(program)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{first}\nimport runpy; runpy.run_path('{path}', run_name='__main__')",
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "RAY_ADDRESS": address,
                "PYTHONPATH": os.pathsep.join([root, str(tmp_path)]),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert 0 == done.returncode, done.stderr
        return dict(json.loads(line) for line in done.stdout.splitlines())

    return run


def test_fault(run):
    """As it is, the program loses what its caller has set, and what `__init__` has."""
    told = run(CALLS)
    assert CARRIED.keys() == told.keys()
    for name in ("task", "local task", "threaded", "threaded, nothing set", "grouped"):
        assert LOST == told[name], name
    assert [LOST, LOST, LOST] == told["nested"]


@pytest.mark.parametrize("first", [BEFORE, AFTER], ids=["before ray", "after ray"])
def test_calls(run, first):
    """Installed, before Ray is imported or after all was made remote, every call carries."""
    assert CARRIED == run(CALLS, first)


HOOKS = """
import os
import torch
from start import start, tell
import ambient, ray, subject

def hook():
    import ambient
    ambient.hooked.append("callable")

for own in (hook, "ambient.hook"):
    # A hook runs before its worker has the path of the driver.
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    start(runtime_env={"worker_process_setup_hook": own, "env_vars": path})
    with torch.no_grad():
        tell(str(own)[:4], ray.get(subject.was_hooked.remote()))
    ray.shutdown()
"""


def test_hook_of_the_user(run):
    """A hook of the program's own runs in each worker, whichever way it is given."""
    told = run(HOOKS, BEFORE)
    assert [[["unset", False], ["callable"]], [["unset", False], ["string"]]] == list(told.values())


AUTOMATIC = """
import torch
from start import tell
import ambient, ray, subject

ambient.variable.set("caller")
with torch.no_grad():
    tell("task", ray.get(subject.task.remote()))
tell("nested", ray.get(subject.nest.remote()))
ray.shutdown()
"""


@pytest.mark.parametrize("first", [BEFORE, AFTER], ids=["before ray", "after ray"])
def test_without_init(run, first):
    """Ray that connects itself at the first call has workers that carry too."""
    told = run(AUTOMATIC, first)
    assert {name: CARRIED[name] for name in ("task", "nested")} == told


def test_a_ray_of_its_own(run):
    """So has a Ray that the program starts for itself, and not only one that it connects to."""
    told = run(AUTOMATIC, AFTER, address="local")
    assert {name: CARRIED[name] for name in ("task", "nested")} == told


RESTARTED = """
import torch
from start import start, tell
import ambient, ctxcarry, ray, subject

@torch.no_grad()
def call(name):
    seen = ray.get(subject.task.remote())
    tell(name, [len(seen[0]), seen[1]])

ambient.variable.set("large" * 100_000)  # kept in the object store
ctxcarry.install("ray")
start()
call("first")
ray.shutdown()
start()
call("second")
ctxcarry.uninstall("ray")
call("uninstalled")
ray.shutdown()
start()
call("third")
tell("nested", ray.get(subject.nest.remote()))
ray.shutdown()
"""


def test_uninstall_and_restart(run):
    """Each start of Ray is as what is installed then says; nothing is left of the one before."""
    told = run(RESTARTED)
    assert [500_000, False] == told["first"] == told["second"]
    assert [len("unset"), True] == told["uninstalled"] == told["third"]
    assert [LOST, LOST, LOST] == told["nested"]


def test_unmodified_after_uninstall(run):
    """Installed and uninstalled before Ray starts, the program is as it was."""
    told = run(AUTOMATIC, f"{AFTER}; ctxcarry.uninstall('ray')")
    assert {"task": LOST, "nested": [LOST, LOST, LOST]} == told
