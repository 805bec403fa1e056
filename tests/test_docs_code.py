"""The code of the README and of the documentation runs, and prints what the pages show."""

import contextvars
import re
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("joblib")
pytest_examples = pytest.importorskip("pytest_examples")

import ctxcarry  # noqa: E402
import ctxcarry.process_groups  # noqa: E402 - its carrier is there for all pages

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    page
    for page in (README, *sorted((ROOT / "docs").rglob("*.md")))
    if "```python\n" in page.read_text("utf-8")
]

FRAMEWORKS = ("spmd_types.", "torch.", "triton.")

FIRST_RUN = (
    "python3 -m venv .venv && "
    '.venv/bin/pip install -q -c constraints.txt -e ".[cli,torch,triton,spmd]" && '
    ".venv/bin/ctxcarry doctor"
)
TESTS = (
    "python3 -m venv .venv && "
    '.venv/bin/pip install -q -c constraints.txt -e ".[cli,torch,triton,spmd,test]" && '
    ".venv/bin/python -m pytest -q"
)


def examples_of(page):
    """Return the ``python`` blocks of a page, in order."""
    return [e for e in pytest_examples.find_examples(page) if e.prefix.split() == ["python"]]


def output_shown(example):
    """Return the output after ``#>`` in an example, or the ``text`` block directly below it."""
    below = "\n".join(example.path.read_text("utf-8").splitlines()[example.end_line :])
    block = re.match(r"\s*```text\n(.*?)```", below, re.DOTALL)
    if block:
        return block[1]
    return "".join(f"{line}\n" for line in re.findall(r"^ *#> (.*)$", example.source, re.MULTILINE))


@pytest.fixture
def clean_slate():
    """Take the carriers that the examples register out of the registry again."""
    before = {carrier.name for carrier in ctxcarry.carriers()}
    yield
    for carrier in ctxcarry.carriers():
        # A framework that an example was the first to import keeps its carriers.
        if carrier.name not in before and not carrier.name.startswith(FRAMEWORKS):
            ctxcarry.unregister(carrier.name)


# What torch says of itself where a page compiles something.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_print_what_the_page_shows(page, capsys, clean_slate, monkeypatch):
    """The examples of a page run in order, each with the names of those before it."""
    # What is compiled of them is looked up in their module.
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)

    def run_all():
        names = vars(module)
        for example in examples_of(page):
            # On their own lines of the page, so that a traceback points there.
            source = "\n" * example.start_line + example.source
            exec(compile(source, page, "exec"), names)  # noqa: S102 - our own pages
            assert capsys.readouterr().out == output_shown(example), f"{page}:{example.start_line}"

    # What an example sets must not reach the tests after it.
    contextvars.Context().run(run_all)


def test_reference_lists_every_public_name():
    """The reference has an entry for each public name, and for nothing else."""
    reference = (ROOT / "docs" / "reference.md").read_text("utf-8")
    listed = re.findall(r"^::: ctxcarry\.(\w+)$", reference, re.MULTILINE)
    # A submodule that users import by itself.
    assert sorted((*ctxcarry.__all__, "process_groups")) == sorted(listed)


def test_readme_is_short():
    """The README has at most 100 lines."""
    assert len(README.read_text("utf-8").splitlines()) <= 100


def test_readme_shows_both_commands():
    """The README shows how to try the package and how to test it, each on a line of bash."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    assert [FIRST_RUN, TESTS] == [line for line in lines if line.startswith("python3 -m venv")]


def test_ci_runs_the_command_of_the_readme():
    """CI tests the package with the very command that the README gives."""
    lines = [line.strip() for line in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()]
    assert TESTS in lines
