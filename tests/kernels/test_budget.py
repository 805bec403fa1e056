"""What the forward keeps, rows that are left out, and results that are always the same."""

import pytest
import torch
from table import ON_CUDA, WAYS, check, check_gradient, problem


def kept_shapes(given, **options):
    """Return the sizes of what a forward saves of E: matrices of its tokens that are no input."""
    shapes = []

    def look(tensor):
        if tensor.dim() == 2 and tensor.shape[0] == 9 and tensor.shape[1] != 40:
            shapes.append(tensor.shape[1])
        return tensor

    leaves = given.leaves()
    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        given.call(*leaves, **options)
    return shapes


@pytest.mark.parametrize(
    ("tiles", "words"), [(0, 0), (0.99, 0), (1, 256), (2.2, 512), (3, 600), (None, 600)]
)
def test_budget_in_bytes(tiles, words, way):
    """Whole tiles are kept as far as they fit, or all words; by default these few do."""
    given = problem(way)
    one = 9 * (256 * way.dtype.itemsize + 4)
    budget = None if tiles is None else int(one * tiles)
    assert kept_shapes(given, memory_budget=budget) == [words if way.fused else 0]
    check(given, memory_budget=budget)


def test_budget_as_a_fraction(way):
    """A fraction is one of the free memory of the device; nothing on the CPU, which has none."""
    words = 600 if way.fused and ON_CUDA else 0
    assert kept_shapes(problem(way), memory_budget=0.5) == [words]


def test_softcap_keeps_nothing(way):
    """With a cap E does not tell the logit, so that none is kept."""
    assert kept_shapes(problem(way), memory_budget=1 << 40, softcap=5.0) == [0]


@pytest.mark.parametrize("budget", [-1, -0.5, float("nan"), float("inf"), True, False])
def test_budget_refused(budget, way):
    """A budget that is no number of bytes or fraction is refused, by name."""
    with pytest.raises(ValueError, match=rf"memory_budget must be .*; given {budget!r}"):
        problem(way, 2).run(memory_budget=budget)


def test_deterministic():
    """Twenty runs give the same bits."""
    given = problem(WAYS[0], 5, 64, 300)

    def run():
        leaves = given.leaves()[:2]
        out = given.call(*leaves, None)
        return [*out, *torch.autograd.grad(out, leaves, (given.dlogp, given.dentropy))]

    first = run()
    for _ in range(19):
        for again, before in zip(run(), first):
            assert torch.equal(again, before)


@pytest.fixture
def rows_taken(way, monkeypatch):
    """Have rows left out of the smallest backward; return how many it takes each time."""
    if not way.fused:  # plain torch takes all
        return None
    from ctxcarry_kernels import _fused

    taken = []
    ask = _fused._rows_with_gradient

    def asked(*args):
        rows = ask(*args)
        taken.append(None if rows is None else rows.numel())
        return rows

    monkeypatch.setattr(_fused, "_WORTH_ASKING", 0)
    monkeypatch.setattr(_fused, "_rows_with_gradient", asked)
    return taken


@pytest.mark.parametrize(
    ("silent", "ignored", "rows"),
    [
        ([0, 3, 4, 8], [], 5),
        ([], [0, 1, 8], 6),
        ([0, 1, 2, 3], [4, 5, 6, 7], 1),
        ([2], [], 8),
        ([], [], None),
    ],
)
def test_rows_left_out(silent, ignored, rows, way, rows_taken):
    """Tokens without a gradient are left out, for the same result; theirs is exactly 0."""
    given = problem(way, bias=True)
    given.labels[ignored] = -100
    given.dlogp[silent] = given.dentropy[silent] = 0
    want = given.expected()
    leaves = given.leaves()
    out = given.call(*leaves, deterministic=False)
    gradients = given.dlogp, given.dentropy
    made = torch.autograd.grad(out, leaves, gradients)
    for mine, right in zip(made, want[2:5]):
        check_gradient(mine, right, way.dtype)
    assert (made[0][silent + ignored] == 0).all()
    if rows_taken is not None:
        assert rows_taken == [rows]


@pytest.mark.parametrize("which", ["dlogp", "dentropy"])
def test_a_gradient_of_one_result_is_not_left_out(which, way, rows_taken):
    """A token with a gradient of only one of the two results has one."""
    given = problem(way)
    getattr(given, which)[:5] = 0
    given.labels[8] = -100
    check(given, deterministic=False)


def test_all_rows_left_out(way, rows_taken):
    """With no gradient at all every gradient is 0."""
    given = problem(way, bias=True)
    given.dlogp, given.dentropy = torch.zeros_like(given.dlogp), torch.zeros_like(given.dentropy)
    got = given.run(deterministic=False)
    for gradient in got[2:5]:
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_deterministic_leaves_no_row_out(way, rows_taken):
    """With deterministic=True, or torch's own setting, all rows are taken."""
    given = problem(way)
    given.dlogp[:8] = given.dentropy[:8] = 0
    check(given, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        check(given)
    finally:
        torch.use_deterministic_algorithms(False)
    if rows_taken is not None:
        assert rows_taken == [None, None]
