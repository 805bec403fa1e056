"""``python -m ctxcarry`` is ``ctxcarry``."""

from ctxcarry.cli import main

if __name__ == "__main__":
    main()
