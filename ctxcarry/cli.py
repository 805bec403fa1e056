"""The entry point of the ``ctxcarry`` command, which needs the extra ``cli``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("main",)


def main(args: Sequence[str] | None = None) -> None:
    """
    Run the command line.

    Args:
        args: What follows the name of the command; ``sys.argv[1:]`` unless given.

    Raises:
        SystemExit: Always: 0 if all is well, 1 if ``doctor`` found a failure, 2 if
            the arguments are wrong or the extra ``cli`` is not installed.
    """
    try:
        import rich  # noqa: F401, PLC0415
        import typer  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"ctxcarry: the command line needs typer and rich ({error}). "
            "Install them with: pip install 'ctxcarry[cli]'\n"
        )
        raise SystemExit(2) from None
    from ctxcarry.diagnose.commands import app  # noqa: PLC0415 - needs both

    app(args=None if args is None else list(args), prog_name="ctxcarry")
