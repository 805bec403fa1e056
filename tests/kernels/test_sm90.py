"""The kernels compiled for sm_90, on a machine without a GPU: no scratch, TMA, wgmma, no spills."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("triton.tools.tensor_descriptor")

from ctxcarry_kernels import _device, _gluon, _launch, _row_kernels, _tile_kernel  # noqa: E402
from ctxcarry_kernels._launch import Statistics  # noqa: E402
from ctxcarry_kernels._settings import Settings  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

pytestmark = [
    pytest.mark.skipif(_launch.INTERPRETED, reason="nothing is compiled under TRITON_INTERPRET"),
    pytest.mark.skipif(not os.access(CUOBJDUMP, os.X_OK), reason="Triton comes without cuobjdump"),
]

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int64: "i64",
}
N, H = 2048, 64
KERNELS = {
    _tile_kernel: ("logits_tiles",),
    _row_kernels: ("label_logit", "combine", "coefficients", "label_gradient", "from_e"),
}


class Launch:
    """Stands in for a kernel, and keeps what it is launched with."""

    def __init__(self, fn, source=ASTSource):
        self.fn = fn
        self.source = source
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.calls.append((args, kwargs))

    def compiled(self):
        """Compile the kernel for what it was launched with, once; return that."""
        ((args, kwargs),) = self.calls
        values = {**dict(zip(self.fn.arg_names, args)), **kwargs}
        constants = {n: kwargs.pop(n) for n in self.fn.arg_names if n in kwargs}
        signature, attributes = {}, {}
        for i, name in enumerate(self.fn.arg_names):
            signature[name] = "constexpr" if name in constants else kind_of(values[name])
            if divisible(values[name]) and name not in constants:
                attributes[i,] = [["tt.divisibility", 16]]
        source = self.source(
            fn=self.fn, signature=signature, constexprs=constants, attrs=attributes
        )
        options = {"enable_fp_fusion": True, **kwargs}  # else 3.9 warns of a new default
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def kind_of(value):
    """Return how Triton's launcher calls the type of an argument."""
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, (int, float)):
        return "i32" if isinstance(value, int) else "fp32"
    layout = f",{value.layout!r}" if hasattr(value, "layout") else ""
    return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}{layout}>"


def divisible(value):
    """Say whether the launcher finds the argument to be a multiple of 16."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


@pytest.fixture
def launches(monkeypatch):
    """Put a `Launch` in the place of each kernel, on a device with the processors of an H100."""
    found = {}
    for module, names in KERNELS.items():
        for name in names:
            found[name] = Launch(getattr(module, name))
            monkeypatch.setattr(module, name, found[name])
    monkeypatch.setattr(_device, "processors", lambda device: 132)
    monkeypatch.setattr(_gluon, "available", lambda: False)
    return found


def settings(*, entropy=True, softcap=0.0):
    """Return the settings of a call."""
    return Settings(1.0, softcap, -100, 0, "", entropy, kept=0, skip_rows=True)


@pytest.fixture
def resources(tmp_path):
    """Return a function that gives registers and bytes of local memory of a kernel's threads."""

    def find(kernel):
        path = tmp_path / "cubin"
        path.write_bytes(kernel.asm["cubin"])
        command = [CUOBJDUMP, "--dump-resource-usage", path]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, *memory = re.search(
            r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told
        ).groups()
        return int(registers), sum(map(int, memory))

    return find


def launch_tiles(leave, dtype, words, *, entropy=True, bias=False, softcap=0.0):
    """Launch the tile kernel with what the paths launch it with."""
    hidden, weight = torch.empty(N, H, dtype=dtype), torch.empty(words, H, dtype=dtype)
    head = torch.empty(words, dtype=dtype) if bias else None
    s = settings(entropy=entropy, softcap=softcap)
    out = torch.empty(N, -(-words // 8) * 8, dtype=dtype)[:, :words]
    if leave == "dlogits":
        rows = tuple(torch.empty(N) for _ in range(3))
        _launch.gradient_tiles(hidden, weight, head, s, out, rows, entropy=entropy)
    else:
        statistics = Statistics.empty(words, N, hidden.device)
        e = out if leave == "e" else out[:, :0]
        _launch.statistics_tiles(hidden, weight, head, s, statistics, e)


TILES = [
    ("statistics", torch.bfloat16, 4096, True),
    ("statistics", torch.bfloat16, 4001, True),
    ("statistics", torch.float16, 4096, False),
    ("e", torch.bfloat16, 4096, True),
    ("e", torch.bfloat16, 4001, False),
    ("e", torch.float16, 4096, True),
    ("dlogits", torch.bfloat16, 4096, True),
    ("dlogits", torch.bfloat16, 4001, False),
    ("dlogits", torch.float16, 4096, True),
]


@pytest.mark.parametrize(("leave", "dtype", "words", "entropy"), TILES)
def test_tiles(launches, resources, leave, dtype, words, entropy):
    """The tile kernel needs no allocator, loads by TMA, multiplies by wgmma and spills nothing."""
    launch_tiles(leave, dtype, words, entropy=entropy)
    kernel = launches["logits_tiles"].compiled()
    ptx = kernel.asm["ptx"]
    assert 0 == kernel.metadata.global_scratch_size
    assert "cp.async.bulk.tensor" in ptx
    assert "wgmma.mma_async" in ptx
    stores = "cp.async.bulk.tensor.2d.global.shared::cta" in ptx
    assert stores == (leave != "statistics")
    registers, spilled = resources(kernel)
    assert spilled == 0, registers


# With both, the gradient with an entropy part does spill: 24 bytes with Triton 3.9, 128 with 3.6.
RARE = [
    ("statistics", {"bias": True, "softcap": 30.0}),
    ("e", {"bias": True}),
    ("dlogits", {"bias": True}),
    ("dlogits", {"softcap": 30.0}),
    ("dlogits", {"bias": True, "softcap": 30.0, "entropy": False}),
]


@pytest.mark.parametrize(("leave", "options"), RARE)
def test_tiles_with_more(launches, resources, leave, options):
    """So it is with a bias or a cap."""
    launch_tiles(leave, torch.bfloat16, 4001, **options)
    kernel = launches["logits_tiles"].compiled()
    assert 0 == kernel.metadata.global_scratch_size
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    registers, spilled = resources(kernel)
    assert spilled == 0, registers


def run_label(entropy, *, bias=True):
    """Launch the kernel of the label's logit."""
    weight = torch.empty(512, H, dtype=torch.bfloat16)
    labels = torch.empty(N, dtype=torch.int64)
    _launch.label_x(weight[:1].expand(N, H), weight, weight[:, 0], labels, settings(softcap=30.0))


def run_combine(entropy, *, finish=True):
    """Launch the kernel that puts the statistics of tiles together."""
    labels = torch.empty(N, dtype=torch.int64)
    statistics = Statistics.empty(4096, N, labels.device)
    s = settings(entropy=entropy)
    _launch.combine(statistics, torch.empty(N), labels, s, finish=finish)


def run_packed(entropy):
    """Launch it for ranks that each have a part of the words."""
    run_combine(entropy, finish=False)


def run_coefficients(entropy):
    """Launch the kernel of the coefficients of rows."""
    rows = torch.empty(N)
    labels = torch.empty(N, dtype=torch.int64)
    _launch.gradient_coefficients(rows, rows if entropy else None, rows, labels, settings())


def run_label_gradient(entropy):
    """Launch the kernel of the label's gradient."""
    rows = torch.empty(N)
    out, labels = torch.empty(N, 512, dtype=torch.bfloat16), torch.empty(N, dtype=torch.int64)
    more = rows if entropy else None
    s = settings(softcap=30.0)
    _launch.label_gradient(out, 0, labels, (rows, rows, rows), rows, more, s)


def run_from_e(entropy):
    """Launch the kernel that makes the gradient of E."""
    e, top, rows = torch.empty(N, 4096, dtype=torch.bfloat16), torch.empty(16, N), torch.empty(N)
    labels = torch.empty(N, dtype=torch.int64)
    more, some = (rows, labels) if entropy else (None, None)
    _launch.from_e(e, top, e, 0, labels, (rows, rows, rows), rows, more, some, settings())


ROWS = {
    "label_logit": (run_label,),
    "combine": (run_combine, run_packed),
    "coefficients": (run_coefficients,),
    "label_gradient": (run_label_gradient,),
    "from_e": (run_from_e,),
}


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize(("name", "run"), [(n, run) for n, runs in ROWS.items() for run in runs])
def test_rows(launches, resources, name, run, entropy):
    """The kernels that pass over rows compile, need no allocator and spill nothing."""
    run(entropy)
    kernel = launches[name].compiled()
    assert 0 == kernel.metadata.global_scratch_size
    registers, spilled = resources(kernel)
    assert spilled == 0, registers
    approximate = "lg2.approx.ftz.f32" in kernel.asm["ptx"]
    assert approximate == (entropy and name == "from_e")


@pytest.fixture
def gluon_launches(monkeypatch, launches):
    """Put a `Launch` in the place of each kernel in Gluon, as if it ran on this machine."""
    if not triton.__version__.startswith(_gluon._VERSIONS):
        pytest.skip(f"the kernels in Gluon are not for Triton {triton.__version__}")
    from triton.experimental.gluon._runtime import GluonASTSource

    found = {}
    own = _gluon._kernel

    def kernel(file, name):
        return found.setdefault(name, Launch(own(file, name), GluonASTSource))

    monkeypatch.setattr(_gluon, "_kernel", kernel)
    monkeypatch.setattr(_gluon, "available", lambda: True)
    return found


@pytest.mark.parametrize("leave", ["e", "dlogits"])
@pytest.mark.parametrize(("words", "entropy"), [(4096, True), (4096, False), (4001, True)])
def test_gluon_tiles(gluon_launches, resources, leave, words, entropy):
    """The kernel in Gluon needs no allocator either, and spills nothing."""
    launch_tiles(leave, torch.bfloat16, words, entropy=entropy)
    check_gluon(gluon_launches["logits_tiles"].compiled(), resources)


@pytest.mark.parametrize("transposed", [True, False])
def test_gluon_product(gluon_launches, resources, transposed):
    """So does the one of the products."""
    a, b, out = (torch.empty(N, N, dtype=torch.bfloat16) for _ in range(3))
    _gluon.product(a, b, out, transposed=transposed)
    check_gluon(gluon_launches["product"].compiled(), resources)


def check_gluon(kernel, resources):
    """Check what is asked of each."""
    assert 0 == kernel.metadata.global_scratch_size
    assert "cp.async.bulk.tensor" in kernel.asm["ptx"]
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    registers, spilled = resources(kernel)
    assert spilled == 0, registers
