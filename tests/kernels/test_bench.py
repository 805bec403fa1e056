"""``python -m ctxcarry_kernels.bench``, run as its users run it, on the CPU."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("typer")
pytest.importorskip("rich")

import torch
from ctxcarry_kernels.bench import _candidates, _inputs, _measure, _peers
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[2]
SIZE = "64,64,512"
QUICK = ("--span", "5", "--rounds", "1")


def run(*args, code=None):
    """Run the benchmark, or `code`, in a new process without a GPU."""
    paths = [str(ROOT), str(ROOT / "integrations"), os.environ.get("PYTHONPATH")]
    env = os.environ | {
        "COLUMNS": "200",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    env.pop("TRITON_INTERPRET", None)
    command = ["-m", "ctxcarry_kernels.bench"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *command, *args],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=env,
        timeout=300,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the outcome of a run with every peer, its data and its picture."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench")
    files = "--json", str(folder / "out.json"), "--plot", str(folder / "out.svg")
    outcome = run("--size", SIZE, *QUICK, *files)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome, json.loads((folder / "out.json").read_text("utf-8")), folder / "out.svg"


def rows_of(data):
    """Return the rows of the only size, by name."""
    (size,) = data["sizes"]
    return {row["name"]: row for row in size["rows"]}


def test_measures_ours_with_each_budget_that_differs(measured):
    """All of E fits into the default here, so there are two rows of ours, with finite ratios."""
    rows = [row for row in rows_of(measured[1]).values() if row["ours"]]
    assert [row["name"] for row in rows] == ["ctxcarry, budget 0", "ctxcarry, default (368 MiB)"]
    for row in rows:
        assert row["error"] == ""
        for name in ("forward_ratio", "forward_backward_ratio"):
            assert math.isfinite(row[name])
            assert row[name] > 0


def test_results_of_ours_are_right(measured):
    """The errors are those of bf16 gradients, and of fp32 logprobs."""
    for row in rows_of(measured[1]).values():
        if row["ours"]:
            assert row["logprob_error"] < 1e-5
            assert row["entropy_error"] < 1e-5
            assert row["dhidden_error"] < 5e-3
            assert row["dweight_error"] < 5e-3


def test_floor_is_four_products():
    """The floor counts the logits twice, and each gradient once."""
    inputs = _inputs.make(_inputs.Size(8, 16, 32), "cpu")
    shapes = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mm.out:
                shapes.append(tuple(kwargs["out"].shape))
            return func(*args, **kwargs or {})

    runs = _measure._baseline_runs(inputs)
    with Products():
        runs["baseline", "floor"]()
    assert shapes == [(8, 32)] * 2 + [(8, 16), (32, 16)]


def test_memory_of_the_cpu_is_not_known(measured):
    """Without a GPU no memory is counted, and the data says so."""
    assert {row["extra_mib"] for row in rows_of(measured[1]).values()} == {None}


def test_each_peer_has_a_row_and_says_why_it_was_not_measured(measured):
    """A peer that is missing or needs a GPU is a row with a reason, not a crash."""
    outcome, data, _ = measured
    for name in ("Liger scaled, SM90", "verl Triton", "CCE exact (no entropy)"):
        error = rows_of(data)[name]["error"]
        assert "is not installed" in error or "needs a CUDA device" in error
        assert f"not measured: {name}: {error}" in outcome.stdout
    assert "torch.compile of the formula" in rows_of(data)


def test_says_what_it_measured_with(measured):
    """Versions and path are printed and, the former, kept."""
    outcome, data, _ = measured
    assert data["environment"]["torch"] == torch.__version__
    assert f"torch {torch.__version__}" in outcome.stdout
    assert "path: plain torch: cpu tensors" in outcome.stdout


def test_plot_is_an_svg_with_a_bar_for_each(measured):
    """The picture is an SVG that names each row of ours."""
    root = ET.parse(measured[2]).getroot()  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(root.itertext())
    assert "ctxcarry, budget 0" in text
    assert "N=64 H=64 V=512" in text


def test_markdown_is_a_table():
    """With --markdown each line of a table has as many cells, whatever the width."""
    outcome = run("--size", SIZE, "--no-peers", "--markdown", "--budget", "0", *QUICK)
    assert outcome.returncode == 0, outcome.stderr
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "torch.mm: logits; 2 x logits + dX + dW",
        "ctxcarry, budget 0",
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_ranks_agree_with_one(tmp_path):
    """With the words over two ranks, evenly or not, results are those of one rank."""
    file = tmp_path / "out.json"
    outcome = run("--size", SIZE, "--tensor-parallel", "2", "--rounds", "1", "--json", str(file))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    (parallel,) = json.loads(file.read_text("utf-8"))["tensor_parallel"]
    assert parallel["ranks"] == 2
    assert [check["ok"] for check in parallel["checks"]] == [True, True]
    ours = [row for row in parallel["rows"] if row["ours"]]
    assert len(ours) == 2
    assert all(row["forward_backward_ms"] > 0 for row in ours)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--size", "64,64"), "'64,64' is not N,H,V"),
        (("--size", "64,0,512"), "'64,0,512' is not N,H,V"),
        (("--size", SIZE, "--budget", "3MB"), "'3MB' is no budget"),
        (("--size", SIZE, "--budget", "0.5"), "'0.5' is no budget"),
        (("--size", SIZE, "--json", "nowhere/out.json"), "there is no such folder"),
        (("--size", SIZE, "--plot", "out.txt"), "a plot is one of .svg, .png, .pdf"),
        (("--size", SIZE, "--plot", "o.svg", "--tensor-parallel", "2"), "--plot draws what one"),
        ((), "there is no CUDA device"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_refused(arguments, says):
    """Wrong arguments exit with 2, and say what is expected, before anything is measured."""
    outcome = run(*arguments)
    assert outcome.returncode == 2
    assert says in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("module", ["rich", "typer"])
def test_without_the_extra_says_what_to_install(module):
    """Without typer or rich the command says which extra to install."""
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from ctxcarry_kernels.bench.__main__ import main; main()"
    )
    outcome = run(code=code)
    assert outcome.returncode == 2
    assert "pip install 'ctxcarry[bench]'" in outcome.stderr


def test_without_matplotlib_a_plot_is_refused_at_once():
    """Without matplotlib --plot is refused, and says which extra to install."""
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from ctxcarry_kernels.bench.__main__ import main; main()"
    )
    outcome = run("--size", SIZE, "--plot", "out.svg", code=code)
    assert outcome.returncode == 2
    assert "ctxcarry[bench]" in outcome.stderr


def test_budgets_are_read_with_their_units():
    """Budgets come in bytes, KiB, MiB and GiB, and by name."""
    size = _inputs.Size(8192, 4096, 128256)
    read = [_candidates._bytes(text, size) for text in ("7", "1KiB", "2 MiB", "2.5GiB", "default")]
    assert read == [7, 1 << 10, 2 << 20, 5 << 29, None]
    assert _candidates._bytes("all", size) == 8192 * (128256 * 2 + 501 * 4)


def test_a_peer_that_fails_to_load_is_a_row(monkeypatch):
    """Whatever a foreign package raises when it is loaded becomes the reason of its row."""

    def broken():
        raise OSError("lib.so: cannot open shared object file")

    monkeypatch.setattr(_candidates, "PEERS", {"broken": broken})
    (candidate,) = _candidates.load_peers()
    assert candidate.error == "OSError: lib.so: cannot open shared object file"


def test_a_package_is_loaded_without_its_init(tmp_path, monkeypatch):
    """The kernel of verl is loaded though its package cannot be, and leaves no stub of it."""
    kernel = tmp_path / "verl" / "utils" / "kernel"
    kernel.mkdir(parents=True)
    for folder in (tmp_path / "verl", kernel.parent):
        (folder / "__init__.py").write_text("raise ImportError('needs a cluster')\n")
    (kernel / "__init__.py").write_text("")
    (kernel / "kernels.py").write_text("from verl.utils.device import is_cuda_available\n")
    (kernel / "linear_cross_entropy.py").write_text(
        "def linear_cross_entropy(*args):\n    return 'logprobs', args[3:]\n"
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_peers, "_needs_cuda", lambda: None)
    try:
        assert _peers.verl()(None, None, None) == ("logprobs", (1.0, "none", None))
        assert "verl" not in sys.modules
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
            del sys.modules[name]


def test_reference_is_what_autograd_makes():
    """The reference agrees with autograd on the plain formula in fp64."""
    inputs = _inputs.make(_inputs.Size(40, 32, 96), "cpu")
    hidden, weight = (t.detach().double().requires_grad_() for t in inputs[:2])
    logp = torch.log_softmax(hidden @ weight.t(), -1)
    entropy = -(logp.exp() * logp).sum(-1)
    logprobs = logp.gather(1, inputs.labels[:, None])[:, 0]
    outputs = [logprobs, entropy]
    gradients = torch.autograd.grad(
        outputs, [hidden, weight], [inputs.dlogprobs.double(), inputs.dentropy.double()]
    )
    expected = _inputs.reference(inputs, block=16)
    for found, wanted in zip(expected, (*outputs, *gradients)):
        torch.testing.assert_close(found, wanted.detach().float())


def test_half_masked_leaves_out_each_second_token():
    """Of the masked inputs half of the tokens have no gradient, and the others theirs."""
    inputs = _inputs.make(_inputs.Size(8, 16, 32), "cpu")
    masked = inputs.half_masked()
    assert masked.dlogprobs[::2].eq(0).all()
    assert masked.dentropy[::2].eq(0).all()
    assert torch.equal(masked.dlogprobs[1::2], inputs.dlogprobs[1::2])
