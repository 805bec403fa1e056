"""The entry point of ``python -m ctxcarry_kernels.bench``, which needs the extra ``bench``."""

from __future__ import annotations

import sys

__all__ = ("main",)


def main() -> None:
    """
    Run the benchmark.

    Raises:
        SystemExit: Always: 0 if all is well, 1 if a kernel of ours failed or was wrong,
            2 if the arguments are wrong or the extra ``bench`` is not installed.
    """
    try:
        import rich  # noqa: F401, PLC0415
        import typer  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"ctxcarry_kernels.bench: it needs typer and rich ({error}). "
            "Install them with: pip install 'ctxcarry[bench]'\n"
        )
        raise SystemExit(2) from None
    from ctxcarry_kernels.bench._commands import app  # noqa: PLC0415 - needs both

    app(prog_name="python -m ctxcarry_kernels.bench")


if __name__ == "__main__":
    main()
