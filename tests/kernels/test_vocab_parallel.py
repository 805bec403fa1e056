"""Words divided over three real processes with gloo: as on one, and the same on each."""

import math
import multiprocessing
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))  # of the processes, too
import _vp_cases as cases
import _vp_ranks

# By what is set for them: plain torch, or the kernels in Triton's interpreter.
PATHS = {"eager": "0", "fused": "1"}
# Relative to the largest: of logits in fp32, and gradients that are rounded to their type.
CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
MEMBERS = {"world": (0, 1, 2), "pair": (1, 2), "alone": (0, 1, 2)}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Return a function that starts three ranks on a path, once, and gives what each says."""
    said = {}

    def start(path):
        folder = tmp_path_factory.mktemp(path)
        context = multiprocessing.get_context("spawn")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", PATHS[path])
            processes = [
                context.Process(target=_vp_ranks.run, args=(rank, str(folder), path))
                for rank in range(_vp_ranks.SIZE)
            ]
            for process in processes:
                process.start()
        for process in processes:
            process.join(200)
            process.kill()
        files = [folder / f"{rank}.pt" for rank in range(_vp_ranks.SIZE)]
        return [torch.load(file) if file.exists() else "still running" for file in files]

    def find(path):
        if path not in said:
            said[path] = start(path)
        return said[path]

    return find


@pytest.fixture
def ranks(path, started):
    """Return what each of three ranks says."""
    if path == "fused" and find_spec("triton") is None:
        pytest.skip("needs Triton")
    results = started(path)
    assert [dict] * 3 == [type(result) for result in results], results
    return results


def pytest_generate_tests(metafunc):
    """Ask each path for its own cases, and all tests of both."""
    if "name" in metafunc.fixturenames:
        both = [(path, name) for path, named in cases.CASES.items() for name in named]
        metafunc.parametrize(("path", "name"), both)
    elif "path" in metafunc.fixturenames:
        metafunc.parametrize("path", PATHS)


def close(found, expected, dtype, name):
    """Check that a tensor is what fp64 makes, up to the precision of a type."""
    if expected is None:
        assert found is None, name
        return
    expected = expected.float()
    finite = expected[expected.isfinite()].abs()
    near = CLOSE[dtype] * max(1.0, finite.max().item() if finite.numel() else 0.0)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=near, msg=lambda m: name + m)


def test_equals_one_rank(ranks, path, name):
    """Results and gradients are those of all the words; each rank has its part of the weight's."""
    case = cases.CASES[path][name]
    expected = cases.plain(case)
    for number, rank in enumerate(MEMBERS[case.group]):
        found = ranks[rank][name]
        assert found["fused"] == (path == "fused")
        assert found["logprobs"].dtype == found["entropy"].dtype == torch.float32
        part = case.part(0 if case.group == "alone" else number)
        for what in ("logprobs", "entropy"):
            close(found[what], expected[what], torch.float32, f"{what} on rank {rank}: ")
        hidden = expected["hidden"] if "hidden" in case.needs else None
        close(found["hidden"], hidden, case.dtype, f"dX on rank {rank}: ")
        for what in ("weight", "bias"):
            whole = expected[what] if "weight" in case.needs else None
            own = None if whole is None else whole[part]
            close(found[what], own, case.dtype, f"{what} on rank {rank}: ")


def test_the_same_on_each_rank(ranks, path, name):
    """Results and the gradient of hidden are the same on each rank to the last bit."""
    case = cases.CASES[path][name]
    first, *others = (ranks[rank][name] for rank in MEMBERS[case.group])
    for other in others:
        for what in ("logprobs", "entropy", "hidden"):
            assert (first[what] is None) == (other[what] is None)
            assert first[what] is None or torch.equal(first[what], other[what]), what


def test_collectives(ranks, path, name):
    """One exchange in the forward; one sum in the backward, if hidden has a gradient at all."""
    case = cases.CASES[path][name]
    shared = case.group != "alone"
    expected = (int(shared), int(shared and "hidden" in case.needs))
    assert {expected} == {ranks[rank][name]["counts"] for rank in MEMBERS[case.group]}


def test_one_rank_of_its_own(ranks):
    """One rank with all the words, by the same path, makes the same as three with a part each."""
    one, three = ranks[0]["one rank"], ranks[0]["three ranks"]
    assert (0, 0) == one["counts"]
    for what in ("logprobs", "entropy", "hidden"):
        close(three[what], one[what], torch.float32, what)
    parts = [rank["three ranks"]["weight"] for rank in ranks]
    close(torch.cat(parts), one["weight"], torch.float32, "weight")


def test_a_label_that_no_rank_has(ranks, path):
    """Its logprob is -inf, on each rank, and no other is."""
    labels = cases.inputs(cases.CASES[path]["out of range"])[3]
    nobody = (labels < 0) | (labels >= sum(cases.CASES[path]["out of range"].words))
    for rank in (1, 2):
        assert torch.equal(ranks[rank]["out of range"]["logprobs"] == -math.inf, nobody)


def test_an_ambient_group_that_is_not_asked(ranks):
    """With ``process_group=False`` a rank has its own words only, and sends nothing."""
    hidden, weight, _, labels, _ = cases.inputs(cases.Case())
    for rank, result in enumerate(ranks):
        logprobs, collectives = result["ignored group"]
        part = cases.Case().part(rank)
        log = torch.log_softmax(hidden.double() @ weight[part].double().T, 1)
        word = labels - part.start
        mine = (word >= 0) & (word < cases.WORDS[rank])
        expected = log.gather(1, torch.where(mine, word, 0)[:, None])[:, 0]
        close(logprobs, torch.where(mine, expected, -torch.inf), torch.float32, f"{rank}: ")
        assert collectives == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("overlap", "word 299 is on two ranks"),
        ("gap", "word 300 is on no rank"),
        ("beginning", "word 0 is on no rank"),
        ("same", "word 0 is on two ranks"),
        ("some", "vocab_start is given on some ranks and not on others"),
    ],
)
def test_shards_that_do_not_add_up(ranks, wrong, why):
    """Each rank raises the same, with what each of them has."""
    (told,) = {rank["wrong"][wrong] for rank in ranks}
    starts = ("?" if start is None else start for start in _vp_ranks.WRONG[wrong])
    sides = [
        f"rank {rank}: {count} words from {start}"
        for rank, (start, count) in enumerate(zip(starts, (300, 78, 135)))
    ]
    assert [] == [part for part in (why, *sides) if part not in told], told


def test_after_an_error(ranks):
    """The ranks go on together after an error."""
    for rank in ranks:
        for what in ("logprobs", "hidden", "weight"):
            assert torch.equal(rank["after wrong"][what], rank["three ranks"][what])


def test_no_tokens(ranks):
    """A call without tokens has empty results, and gradients of 0."""
    expected = torch.Size([0]), torch.Size([0, cases.H]), 0.0
    assert [expected] * 3 == [rank["no tokens"] for rank in ranks]


def test_compiled(ranks, path):
    """Code that is compiled as a whole finds the ambient group, and makes the same."""
    if path == "fused":
        pytest.skip("the interpreter is not compiled")
    for rank in ranks:
        assert (1, 1) == rank["compiled"]["counts"]
        for what in ("logprobs", "entropy", "hidden", "weight"):
            assert torch.equal(rank["compiled"][what], rank["three ranks"][what]), what


def test_checked_labels(ranks, path):
    """``CTXCARRY_CHECK_LABELS`` takes the words of all ranks for words, and no others."""
    if path == "fused":
        pytest.skip("the check is before the paths part")
    (told,) = {rank["checked"] for rank in ranks}
    assert "labels must be from 0 to 511" in told
    assert "[-7, 512]" in told
