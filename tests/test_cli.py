"""The command line, run as its users run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import ctxcarry
from ctxcarry.cli import main

ROOT = Path(__file__).resolve().parents[1]


def run(*args, code=None):
    """Run ``python -m ctxcarry``, or `code`, in a new process with 80 columns."""
    env = {k: v for k, v in os.environ.items() if k not in {"FORCE_COLOR", "GITHUB_ACTIONS"}}
    env |= {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    command = ["-m", "ctxcarry"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *command, *args],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=env,
        timeout=300,
    )


def without(*modules):
    """Return code that runs the command line where `modules` cannot be imported."""
    return (
        f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
        "from ctxcarry.cli import main; main(sys.argv[1:])"
    )


@pytest.fixture(scope="module")
def doctor():
    """Return the outcome of ``ctxcarry doctor``."""
    pytest.importorskip("torch")
    return run("doctor")


def test_doctor_passes_here(doctor):
    """``doctor`` exits with 0 where every context is carried, and says so."""
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "every context arrives, and nothing stays behind" in doctor.stdout


def test_doctor_fits_80_columns(doctor):
    """No line of ``doctor`` is longer than 80 characters."""
    assert max(len(line) for line in doctor.stdout.splitlines()) <= 80


def test_doctor_warns_of_nothing(doctor):
    """``doctor`` writes nothing but its report."""
    assert doctor.stderr == ""


def test_doctor_is_silent_about_numpy():
    """Without NumPy, what torch says about it at its import is left out, and it alone."""
    pytest.importorskip("torch")
    ran = run("carriers", code=without("numpy"))
    assert ran.returncode == 0, ran.stderr
    assert "NumPy" not in ran.stderr


def test_doctor_tells_versions_and_patches(doctor):
    """``doctor`` ends with what it ran with and what is patched."""
    assert f"ctxcarry {ctxcarry.__version__}" in doctor.stdout
    assert "patched: nothing" in doctor.stdout


def test_doctor_prints_nothing_but_json():
    """``doctor --json`` prints one JSON object, whatever frameworks print."""
    code = (
        "import sys, ctxcarry\n"
        "def loud(): print('loud'); return 0\n"
        "ctxcarry.register(ctxcarry.ValueCarrier('app.loud', loud, print))\n"
        "from ctxcarry.cli import main; main(sys.argv[1:])"
    )
    ran = run("doctor", "--json", code=code)
    assert json.loads(ran.stdout)["ok"] is True
    assert ran.returncode == 0
    assert "loud" in ran.stderr


def test_doctor_names_a_broken_carrier():
    """``doctor`` exits with 1 and names the carrier that fails."""
    code = (
        "import sys, ctxcarry\n"
        "def jammed(): raise OSError('jammed')\n"
        "ctxcarry.register(ctxcarry.ValueCarrier('app.broken', jammed, print))\n"
        "from ctxcarry.cli import main; main(sys.argv[1:])"
    )
    ran = run("doctor", code=code)
    assert ran.returncode == 1
    assert "carrier 'app.broken' failed to capture its context: OSError: jammed" in ran.stdout


def test_doctor_tells_of_an_absent_framework():
    """A framework that is not installed has a line that says how to install it."""
    ran = run("doctor", code=without("triton"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = " ".join(ran.stdout.split())
    expected = "triton is not installed: its contexts are not shown; pip install 'ctxcarry[triton]'"
    assert expected in said
    assert "triton.allocator" not in said


def test_doctor_runs_without_any_framework():
    """Where no framework is installed, the rest is still shown."""
    ran = run("doctor", "--json", code=without("torch", "triton", "spmd_types"))
    data = json.loads(ran.stdout)
    assert (0, True) == (ran.returncode, data["ok"])
    assert {"torch", "triton", "spmd_types"} <= {each["framework"] for each in data["absent"]}
    assert "contextvars" in {row["name"] for row in data["carriers"]}


def test_carriers_lists_what_is_here():
    """``carriers --json`` names each carrier, what it is, and that it is present."""
    pytest.importorskip("torch")
    ran = run("carriers", "--json")
    entries = {e["name"]: e for e in json.loads(ran.stdout)["carriers"]}
    grad = entries["torch.grad_mode"]
    assert ("torch", "present", None) == (grad["where"], grad["status"], grad["reason"])
    assert grad["what"].startswith("Whether autograd records")


def test_carriers_lists_what_is_not_here():
    """``carriers`` says which frameworks are missing, and how to install them."""
    ran = run("carriers", code=without("triton"))
    assert ran.returncode == 0, ran.stderr
    said = " ".join(ran.stdout.split())
    assert "triton.allocator" in said
    assert "triton.allocator, triton.profile_allocator: triton is not installed" in said
    assert "not imported" in said
    assert max(len(line) for line in ran.stdout.splitlines()) <= 80


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_extra_is_told(missing):
    """Without typer or rich the command says what to install and exits with 2."""
    ran = run("doctor", code=without(missing))
    assert ran.returncode == 2
    assert "pip install 'ctxcarry[cli]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_version(capsys):
    """``--version`` prints the version."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (0, f"ctxcarry {ctxcarry.__version__}\n") == (ended.value.code, capsys.readouterr().out)


@pytest.mark.parametrize("args", [["--help"], ["doctor", "--help"], ["carriers", "--help"]])
def test_help(capsys, args):
    """Each command has help."""
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 0
    assert "Usage" in capsys.readouterr().out


def test_unknown_command_is_an_error(capsys):
    """A command that does not exist exits with 2."""
    with pytest.raises(SystemExit) as ended:
        main(["docter"])
    assert ended.value.code == 2
    assert "docter" in capsys.readouterr().err
