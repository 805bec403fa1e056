"""What is a budget, and what is said of one that is not, or is too small."""

import pytest
from ctxcarry_checkpoint._budget import BudgetError, budget_bytes, check_budget, readable

WHOLE = 1000


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (0, 0),
        (1, 1),
        (4096, 4096),
        (0.5, 500),
        (1.0, 1000),
        (0.0, 0),
        ("4GiB", 4 << 30),
        ("512 MiB", 512 << 20),
        ("1.5GB", 1_500_000_000),
        (" 2 kb ", 2000),
        ("1TiB", 1 << 40),
        ("77", 77),
        ("1_000B", 1000),
        (".5 KiB", 512),
        ("25%", 250),
    ],
)
def test_a_budget_in_bytes(budget, nbytes):
    """Bytes, text with a unit and a ratio are all budgets."""
    assert budget_bytes(budget, WHOLE) == nbytes


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (-1, "negative"),
        (1.5, "no ratio"),
        (-0.1, "no ratio"),
        (float("nan"), "no ratio"),
        ("120%", "no ratio"),
        ("much", "no budget"),
        ("x%", "no budget"),
        ("", "no budget"),
        ("-4GiB", "no budget"),
        ("4 GiBs", "no unit 'GiBs'"),
        (None, "no budget"),
        (True, "no budget"),
    ],
)
def test_no_budget(budget, said):
    """What is no budget is refused, with the forms that one can have."""
    with pytest.raises(ValueError, match=said):
        check_budget(budget)


def test_a_budget_that_is_too_small():
    """The error tells the range in bytes and in units that people read."""
    error = BudgetError(10, 1 << 20, 3 << 30)
    assert isinstance(error, ValueError)
    assert (error.budget, error.smallest, error.largest) == (10, 1 << 20, 3 << 30)
    for part in ("10 B (10 bytes)", "1 MiB (1048576 bytes)", "3 GiB (3221225472 bytes)"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1048575, "1 MiB"),
        (300 << 20, "300 MiB"),
        (5 << 40, "5 TiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_bytes_as_people_read_them(nbytes, text):
    """A number of bytes has the largest unit that it reaches."""
    assert readable(nbytes) == text
