"""
Compare autograd's threads on and off on two GPUs of one process, and what carrying adds.

    python tests/benchmarks/two_gpu_autograd.py --markdown --json out.json

One backward pass goes over two devices: through checkpointed blocks, whose recompute is
Python, and through a chain of small native nodes, where launching is the work. It runs

- with autograd's threads on and nothing carried, as plain torch does it;
- with them on, ``ctxcarry.install("autograd")``, and every context set that can be;
- the same, leaving out function modes (which cost something for each operation that they
  see, and plain torch's recompute does not have them);
- with them switched off, the usual workaround, and nothing carried.

The contexts are set in all of them. All take short turns, in another order each round; the
figures are medians, and the ratios medians of those within a round. First it is checked that
recomputes find the mesh of their forward on both devices, and that all gradients agree; the
program ends with 1 if not. A goal that is missed is only told.

``--devices cuda:0 cuda:0`` tries it with one GPU, ``--device cpu`` with none.
"""

from __future__ import annotations

import argparse
import contextvars
import gc
import json
import random
import statistics
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import machine, python_version
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import ctxcarry
from ctxcarry import process_groups
from ctxcarry.boundaries.recompute import capture_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Times = dict["Way", list[tuple[float, float]]]  # forward and backward, in each round

MOST_ADDED = 1.03
LEAST_GAINED = 1.2
LARGEST_ERROR = 1e-2
MODES = ("torch.function_modes", "torch.default_device")
ON_CPU = "on the CPU nothing runs on autograd's device threads: its ratios say nothing about them"
ON_ONE = "one thread serves a device that is given twice: threads off cannot be compared"


class Way(NamedTuple):
    """How a pass is run."""

    name: str
    threads: bool = True
    carried: bool = False
    left_out: tuple[str, ...] = ()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run forward and backward this way."""
        with ExitStack() as scope:
            if self.carried:
                ctxcarry.install("autograd")
                scope.callback(ctxcarry.uninstall, "autograd")
            if self.left_out:
                scope.enter_context(ctxcarry.suppress(*self.left_out))
            scope.enter_context(torch.autograd.set_multithreading_enabled(self.threads))
            yield


PLAIN = Way("threads on, nothing carried")
CARRIED = Way("threads on, all carried", carried=True)
NO_MODES = Way("threads on, all but modes", carried=True, left_out=MODES)
OFF = Way("threads off, nothing carried", threads=False)
WAYS = (PLAIN, CARRIED, NO_MODES, OFF)


class Graph(NamedTuple):
    """What a pass goes through: a function that makes the ends, and what gets gradients."""

    name: str
    forward: Callable[[], list[torch.Tensor]]
    leaves: list[torch.Tensor]


def checkpointed(given: argparse.Namespace) -> Graph:
    """Return checkpointed blocks of linear layers on each device, one device after the other."""

    def block(**like: Any) -> nn.Module:
        layers = (nn.Linear(given.width, given.width, **like) for _ in range(given.layers))
        return nn.Sequential(*layers)

    models, inputs = [], []
    for device in given.devices:
        like = {"device": device, "dtype": given.dtype}
        models.append(nn.ModuleList(block(**like) for _ in range(given.blocks)))
        inputs.append(torch.randn(given.tokens, given.width, **like))
    leaves = [weight for model in models for weight in model.parameters()]
    for weight in leaves:  # so that values keep their size through all layers
        nn.init.normal_(weight, std=given.width**-0.5)

    def forward() -> list[torch.Tensor]:
        ends = []
        for model, x in zip(models, inputs):
            for layers in model:
                x = checkpoint(layers, x, use_reentrant=False)  # noqa: PLW2901
            ends.append(x.sum())
        return ends

    name = f"{given.blocks} checkpointed blocks of {given.layers} linear layers of {given.width}"
    return Graph(f"{name}, {given.tokens} tokens", forward, leaves)


def native(given: argparse.Namespace) -> Graph:
    """Return chains of small nodes written in C++, one on each device."""
    width = given.native_width
    leaves = []  # orthogonal, so that gradients do not vanish
    for device in given.devices:
        weight = torch.empty(width, width, device=device)
        leaves.append(nn.init.orthogonal_(weight).requires_grad_())

    def forward() -> list[torch.Tensor]:
        ends = []
        for weight in leaves:
            x = torch.ones_like(weight)
            for _ in range(given.nodes):
                x = torch.tanh(x @ weight)
            ends.append(x.sum())
        return ends

    return Graph(f"{given.nodes} of matmul and tanh of {width}", forward, leaves)


def step(graph: Graph, devices: Sequence[torch.device]) -> tuple[float, float]:
    """Return how many milliseconds a forward and its backward take."""
    for leaf in graph.leaves:
        leaf.grad = None
    synchronize(devices)
    start = time.perf_counter()
    ends = graph.forward()
    synchronize(devices)
    between = time.perf_counter()
    torch.autograd.backward(ends)
    synchronize(devices)
    return (between - start) * 1e3, (time.perf_counter() - between) * 1e3


def synchronize(devices: Sequence[torch.device]) -> None:
    """Wait for all devices."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def measure(graph: Graph, given: argparse.Namespace) -> Times:
    """Return the median milliseconds of forward and backward, each way, in each round."""
    times: Times = {way: [] for way in WAYS}
    order = list(WAYS)
    shuffled = random.Random(0)  # noqa: S311 - an order
    gc.collect()
    gc.disable()
    for number in range(1, given.rounds + 1):
        sys.stderr.write(f"{graph.name}: round {number} of {given.rounds}\n")
        shuffled.shuffle(order)
        for way in order:
            with way.entered():
                for _ in range(given.warm):  # after a patch the interpreter has much to look up
                    step(graph, given.devices)
                took = [step(graph, given.devices) for _ in range(given.passes)]
            times[way].append(tuple(map(statistics.median, zip(*took))))  # type: ignore[arg-type]
        gc.collect()
    gc.enable()
    return times


def ratio(times: Times, way: Way, other: Way) -> float:
    """Return how much longer the backward takes one way than the other."""
    return statistics.median(a[1] / b[1] for a, b in zip(times[way], times[other]))


def mesh_to_find(mesh: Any) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return what sets the mesh for a block, and what reads it; a ContextVar without spmd_types."""
    with suppress(ImportError):
        spmd = import_module("spmd_types")
        return lambda: spmd.set_current_mesh(mesh), spmd.current_mesh_names
    variable = contextvars.ContextVar[object]("mesh", default=None)

    @contextmanager
    def setting() -> Iterator[None]:
        token = variable.set("set")
        yield
        variable.reset(token)

    return setting, variable.get


def recomputed(way: Way, mesh: Any, devices: Sequence[torch.device]) -> Iterator[dict[str, Any]]:
    """Yield for each device what its forward had set, and what its recompute saw and where."""
    setting, read = mesh_to_find(mesh)
    notes: list[list[tuple[int, object]]] = [[] for _ in devices]

    def block(x: torch.Tensor, noted: list[tuple[int, object]]) -> torch.Tensor:
        # Torch ends the process if a recompute raises on the thread of a device.
        noted.append((get_ident(), read()))
        return x.sin().exp()

    with way.entered():
        with setting():
            leaves = [torch.ones(4, device=device, requires_grad=True) for device in devices]
            pairs = zip(leaves, notes)
            ends = [checkpoint(block, *pair, use_reentrant=False).sum() for pair in pairs]
        torch.autograd.backward(ends)
    for device, noted in zip(devices, notes):
        (_, had), *again = noted
        thread, saw = again[0] if again else (0, "nothing: it did not run")
        yield {"device": device, "way": way.name, "had": had, "saw": saw, "thread": thread}


def check_recompute(mesh: Any, devices: Sequence[torch.device]) -> tuple[list[dict], list[str]]:
    """Return what recomputes see, without and with us, and what is wrong about it."""
    told, wrong = [], []
    for way in (PLAIN, CARRIED):
        found = list(recomputed(way, mesh, devices))
        for each in found:
            on_caller = each["thread"] == get_ident()
            if way is CARRIED and (each["had"] is None or each["saw"] != each["had"]):
                wrong.append(f"the recompute does not see what its forward had: {each}")
            if each["device"].type == "cuda" and on_caller:
                wrong.append(f"the recompute ran on the thread that called backward(): {each}")
            shown = {key: str(each[key]) for key in ("device", "way", "had", "saw")}
            told.append({**shown, "thread": "the caller's" if on_caller else "another"})
        if two_gpus(devices) and len({each["thread"] for each in found}) < len(devices):
            wrong.append(f"the devices do not have a thread each: {found}")
    return told, wrong


def check_gradients(graph: Graph, devices: Sequence[torch.device]) -> list[str]:
    """Return the ways in which a pass has other gradients than in plain torch."""
    wrong = []
    expected: list[torch.Tensor] = []
    for way in WAYS:
        with way.entered():
            step(graph, devices)
        found = [leaf.grad.double() for leaf in graph.leaves]
        expected = expected or found
        off = max(float((x - y).norm() / y.norm()) for x, y in zip(found, expected))
        if not off <= LARGEST_ERROR:  # NaN included
            wrong.append(
                f"{graph.name}, {way.name}: gradients off by {off} of those of plain torch"
            )
    return wrong


def on_gpus(devices: Sequence[torch.device]) -> bool:
    """Say whether these are CUDA devices."""
    return all(device.type == "cuda" for device in devices)


def two_gpus(devices: Sequence[torch.device]) -> bool:
    """Say whether these are different CUDA devices."""
    return on_gpus(devices) and len(set(devices)) == len(devices)


class Same(TorchFunctionMode):
    """A function mode that changes nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        return func(*args, **kwargs or {})


def set_everything(scope: ExitStack, mesh: Any, device: torch.device) -> list[str]:
    """Set every context that can be carried to a recompute; return the names of those."""
    for i in range(3):
        contextvars.ContextVar[int](f"two_gpu_autograd.{i}").set(i)
    with suppress(ImportError, AttributeError):
        import_module("triton").set_allocator(allocate)
        import_module("triton.runtime._allocation").set_profile_allocator(allocate)
    group = mesh.get_group("tp")
    scope.enter_context(mesh)
    scope.enter_context(process_groups.use(tp=group, dp=mesh.get_group("dp")))
    with suppress(ImportError):
        scope.enter_context(import_module("torch.distributed._dist2").process_group(group))
    with suppress(ImportError):
        scope.enter_context(import_module("spmd_types").set_current_mesh(mesh))
    with suppress(ImportError):
        import_module("torchtitan.distributed.utils").set_spmd_backend("spmd_types")
        titan = import_module("torchtitan.distributed.spmd_types")
        scope.enter_context(titan.set_current_spmd_mesh(mesh))
    scope.enter_context(device)
    scope.enter_context(Same())
    lines = capture_forward().explain().splitlines()
    return [line.split(":")[0].strip() for line in lines if ": captured" in line]


def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Allocate scratch memory for a kernel of Triton."""
    return torch.empty(size, device="cuda", dtype=torch.int8)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """
    Check, then measure; return all of it.

    Raises:
        SystemExit: 1 if what is carried does not arrive, or gradients differ.
    """
    torch.manual_seed(0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with ExitStack() as scope:
        scope.callback(dist.destroy_process_group)
        told, wrong = check_recompute(mesh, given.devices)
        graphs = [checkpointed(given), native(given)]
        names = set_everything(scope, mesh, given.devices[0])
        for graph in graphs:
            wrong += check_gradients(graph, given.devices)
        if wrong:
            sys.stderr.write("\n".join(["FAILED:", *wrong, f"seen: {told}", ""]))
            raise SystemExit(1)
        times = [measure(graph, given) for graph in graphs]
    return {
        "environment": environment(given.devices),
        "dtype": str(given.dtype),
        "carried": names,
        "recompute": told,
        "results": [row for graph, took in zip(graphs, times) for row in rows(graph, took)],
        "goals": goals(*times, given.devices),
        "note": "" if two_gpus(given.devices) else ON_ONE if on_gpus(given.devices) else ON_CPU,
    }


def rows(graph: Graph, times: Times) -> list[dict[str, Any]]:
    """Return a row for each way."""
    return [
        {
            "graph": graph.name,
            "way": way.name,
            "forward_ms": statistics.median(forward for forward, _ in took),
            "backward_ms": statistics.median(backward for _, backward in took),
            "ratio": ratio(times, way, PLAIN),
            "rounds": took,
        }
        for way, took in times.items()
    ]


def goals(blocks: Times, chain: Times, devices: Sequence[torch.device]) -> list[dict[str, Any]]:
    """Return ratios, and whether their goals are reached; None where that says little."""
    found = [
        ("blocks: carried / plain", ratio(blocks, CARRIED, PLAIN), "at most", MOST_ADDED),
        ("blocks: threads off / carried", ratio(blocks, OFF, CARRIED), "at least", LEAST_GAINED),
        ("native: carried / plain", ratio(chain, CARRIED, PLAIN), "at most", MOST_ADDED),
        ("native: threads off / carried", ratio(chain, OFF, CARRIED), "at least", 0.0),
    ]
    return [
        {
            "ratio": name,
            "value": value,
            "goal": f"{bound} {limit}" if limit else "none",
            "reached": (value <= limit if bound == "at most" else value >= limit)
            if limit and (two_gpus(devices) or (bound == "at most" and on_gpus(devices)))
            else None,
        }
        for name, value, bound, limit in found
    ]


def environment(devices: Sequence[torch.device]) -> dict[str, str]:
    """Return the devices and the versions of what is measured with."""
    found = {
        f"device {i}": f"{d} {torch.cuda.get_device_name(d) if d.type == 'cuda' else machine()}"
        for i, d in enumerate(devices)
    }
    found |= {"python": python_version(), "ctxcarry": ctxcarry.__version__}
    found |= {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name in ("triton", "spmd_types", "torchtitan"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def tables(data: dict[str, Any], *, markdown: bool) -> str:
    """Return what `run` returned as text."""
    times = [
        [
            each["graph"],
            each["way"],
            *(f"{each[key]:.3f}" for key in ("forward_ms", "backward_ms", "ratio")),
        ]
        for each in data["results"]
    ]
    judged = {True: "reached", False: "MISSED", None: "not judged"}
    aims = [
        [each["ratio"], f"{each['value']:.3f}", each["goal"], judged[each["reached"]]]
        for each in data["goals"]
    ]
    seen = [list(each.values()) for each in data["recompute"]]
    return "\n\n".join(
        [
            ", ".join(f"{name} {value}" for name, value in data["environment"].items()),
            table(
                ["device", "way", "set around forward", "recompute sees", "thread"], seen, markdown
            ),
            f"set and carried, in {data['dtype']}: {', '.join(data['carried'])}",
            table(["graph", "way", "forward, ms", "backward, ms", "of plain"], times, markdown),
            table(["ratio of backwards", "is", "goal", ""], aims, markdown),
            data["note"],
        ]
    ).rstrip()


def table(head: list[str], lines: list[list[str]], markdown: bool) -> str:  # noqa: FBT001
    """Return it with columns of equal width, or as Markdown."""
    if markdown:
        made = [head, ["---"] * len(head), *lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in made)
    widths = [max(map(len, column)) for column in zip(head, *lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
        for line in (head, *lines)
    )


def arguments() -> argparse.Namespace:
    """Return the arguments, with devices that are there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--devices", nargs=2, type=torch.device, help="cuda:0 cuda:1 unless given")
    where.add_argument("--device", type=torch.device, help="one device, given twice: cpu")
    add("--blocks", type=int, default=24, help="checkpointed blocks on each device")
    add("--layers", type=int, default=4, help="linear layers of a block")
    add("--width", type=int, default=2048, help="of a linear layer")
    add("--tokens", type=int, default=2048, help="rows of the input on each device")
    add("--nodes", type=int, default=1500, help="matmul and tanh of the native chain")
    add("--native-width", type=int, default=64, help="of their matrices")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--rounds", type=int, default=12, help="how often each has its turn")
    add("--warm", type=int, default=3, help="steps at the start of a turn that do not count")
    add("--passes", type=int, default=5, help="steps of a turn that count")
    add("--markdown", action="store_true", help="print tables as Markdown")
    add("--json", type=Path, help="write everything to a file")
    given = parser.parse_args()
    one = given.device and [given.device] * 2
    given.devices = given.devices or one or [torch.device("cuda", i) for i in range(2)]
    given.dtype = getattr(torch, given.dtype)
    there = torch.cuda.device_count()
    if any(d.type == "cuda" and (d.index or 0) >= there for d in given.devices):
        parser.error(
            f"this needs two CUDA devices, and there are {there}. With one: --devices cuda:0 "
            "cuda:0; without: --device cpu"
        )
    if given.json is not None and not given.json.resolve().parent.is_dir():
        parser.error(f"{given.json}: there is no such folder")
    return given


def main() -> None:
    """Check, measure, print tables, write a file."""
    given = arguments()
    data = run(given)
    print(tables(data, markdown=given.markdown))
    if given.json is not None:
        given.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
