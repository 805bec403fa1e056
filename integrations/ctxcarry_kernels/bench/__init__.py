"""
Measure `ctxcarry_kernels.linear_cross_entropy` beside cuBLAS and other kernels.

    python -m ctxcarry_kernels.bench

Needs the extra ``bench``. Candidates take turns within one run, so that ratios compare
what ran on the same card at the same temperature.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
