"""The path of the Triton kernels: tiles of logits that never get into memory as such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctxcarry_kernels import _group, _launch
from ctxcarry_kernels._device import on_device, processors
from ctxcarry_kernels._gemm import add_product
from ctxcarry_kernels._launch import Statistics
from ctxcarry_kernels._plan import TILE_V, chunk_words, chunks, padded, scratch, tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctxcarry_kernels._results import Gradients, Needed, Results
    from ctxcarry_kernels._settings import Settings

__all__ = ("backward", "forward")

# Below this many multiplications it costs more to ask which rows have a gradient, for
# which the host waits, than the rows do.
_WORTH_ASKING = 5e11


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
) -> Results:
    """Return logprob and entropy of each token, and what the backward needs."""
    n, v = hidden.shape[0], weight.shape[0]
    with on_device(hidden):
        statistics = Statistics.empty(v, n, hidden.device)
        e = hidden.new_empty((n, padded(s.kept)))[:, : s.kept]
        _launch.statistics_tiles(hidden, weight, bias, s, statistics, e)
        x = _launch.label_x(hidden, weight, bias, labels, s)
        if s.group:
            (packed,) = _launch.combine(statistics, x, labels, s, finish=False)
            everyone = _group.gather(packed, _group.resolve(s.group))
            x = everyone[:, 3].amax(0)
            parts = Statistics(*everyone[:, :3].unbind(1))
        else:
            parts = statistics
        logp, entropy, lse = _launch.combine(parts, x, labels, s, finish=True)
        top = statistics.top
        if s.kept < v:  # a copy: the rest need not stay
            top = top[: tiles(s.kept)].clone()
    return logp, entropy, lse, x, e, top


def backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    results: Results,
    gradients: tuple[Tensor, Tensor | None],
    s: Settings,
    needed: Needed,
    *,
    consume: bool,
) -> Gradients:
    """
    Return the gradients of hidden, weight and bias, None for those not needed.

    `results` are those of `forward`, `gradients` are of logprob and entropy, fp32 [N]
    each. With `consume`, E may be overwritten.
    """
    with on_device(hidden):
        return _Backward(hidden, weight, bias, labels, results, gradients, s).run(
            needed, consume=consume
        )


class _Backward:
    """One backward: the rows that have a gradient, and the pieces of the vocabulary."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        results: Results,
        gradients: tuple[Tensor, Tensor | None],
        s: Settings,
    ) -> None:
        logp, entropy, lse, x, self.e, self.top = results
        dlogp, dentropy = gradients
        self.tokens = hidden.shape[0]
        self.weight, self.bias, self.s = weight, bias, s
        self.rows = _rows_with_gradient(hidden, weight, labels, dlogp, dentropy, s)
        pick: Callable[[Tensor], Tensor]
        pick = (lambda t: t) if self.rows is None else (lambda t: t.index_select(0, self.rows))  # type: ignore[arg-type]
        self.hidden, self.labels = pick(hidden), pick(labels)
        self.logp, self.entropy, self.lse, self.x = map(pick, (logp, entropy, lse, x))
        self.dlogp = pick(dlogp)
        self.dentropy = None if dentropy is None else pick(dentropy)

    def run(self, needed: Needed, *, consume: bool) -> Gradients:
        """Go over the pieces, and add up what each gives."""
        hidden, weight = self.hidden, self.weight
        in_place = consume and self.rows is None and self.s.kept > 0
        group = _group.resolve(self.s.group) if self.s.group and needed.hidden else None
        dweight = torch.empty_like(weight) if needed.weight else None
        dbias = None if self.bias is None or not needed.bias else torch.empty_like(self.bias)
        total: Tensor | None = None
        wait: Callable[[], object] | None = None
        for first, d, last in self._pieces(in_place=in_place):
            words = slice(first, first + d.shape[1])
            if needed.hidden:
                if last and first == 0 and group is None:  # the only one: it need not be fp32
                    total = _launch.product(d, weight, torch.empty_like(hidden))
                else:
                    total = add_product(total, d, weight[words])
                if last and group is not None:
                    total = self._all_tokens(total)
                    # On its way while the last gradient of the weight is made.
                    wait = _group.reduce_sum(total, group)
            if dweight is not None:
                _launch.product(d, hidden, dweight[words], transposed=True)
            if dbias is not None:
                dbias[words] = d.sum(0, dtype=torch.float32)
        if wait is not None:
            wait()
        dhidden = None if total is None else total.to(hidden.dtype)
        if dhidden is not None and group is None:
            dhidden = self._all_tokens(dhidden)
        return dhidden, dweight, dbias

    def _pieces(self, *, in_place: bool) -> Iterator[tuple[int, Tensor, bool]]:
        """Yield first word, gradient of the logits and whether it is the last, piece by piece."""
        n, v, kept = self.hidden.shape[0], self.weight.shape[0], self.s.kept
        size = self.hidden.element_size()
        held = self.e.shape[0] * padded(kept) * size if in_place else 0
        room = max(scratch(n, self.hidden.shape[1]), held)
        width = chunk_words(n, v, room, size, processors(self.hidden.device))
        recomputed = chunks(kept, v, width)
        stored = [(0, kept)] if in_place else chunks(0, kept, width)
        last = (recomputed or stored)[-1][0]
        widest = max(
            (padded(words) for _, words in recomputed + ([] if in_place else stored)), default=0
        )
        memory = _whole(self.e) if in_place else None
        if memory is None or memory.numel() < n * widest:
            memory = self.hidden.new_empty(n * widest) if widest else memory
        for first, words in stored:
            d = self.e if in_place else _matrix(memory, n, words)
            self._from_e(first, d)
            yield first, d, first == last
        coefficients = self._coefficients() if recomputed else None
        for first, words in recomputed:
            d = _matrix(memory, n, words)
            self._recompute(first, d, coefficients)
            yield first, d, first == last

    def _from_e(self, first: int, d: Tensor) -> None:
        _launch.from_e(
            self.e[:, first:],
            self.top[first // TILE_V :],
            d,
            self.s.first + first,
            self.labels,
            (self.logp, self.entropy, self.lse),
            self.dlogp,
            self.dentropy,
            self.rows,
            self.s,
        )

    def _coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        a, b = _launch.gradient_coefficients(
            self.dlogp, self.dentropy, self.entropy, self.labels, self.s
        )
        return self.lse, a, b

    def _recompute(self, first: int, d: Tensor, coefficients: Any) -> None:
        words = slice(first, first + d.shape[1])
        bias = None if self.bias is None else self.bias[words]
        entropy = self.dentropy is not None
        _launch.gradient_tiles(
            self.hidden, self.weight[words], bias, self.s, d, coefficients, entropy=entropy
        )
        results = self.logp, self.entropy, self.x
        start = self.s.first + first
        _launch.label_gradient(d, start, self.labels, results, self.dlogp, self.dentropy, self.s)

    def _all_tokens(self, of_rows: Tensor) -> Tensor:
        if self.rows is None:
            return of_rows
        everything = of_rows.new_zeros((self.tokens, of_rows.shape[1]))
        return everything.index_copy_(0, self.rows, of_rows)


def _rows_with_gradient(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    dlogp: Tensor,
    dentropy: Tensor | None,
    s: Settings,
) -> Tensor | None:
    """
    Return the tokens that have a gradient, or None where all are to be taken.

    The host waits for the answer, which a CUDA graph cannot record.
    """
    if not s.skip_rows or hidden.numel() * weight.shape[0] < _WORTH_ASKING:
        return None
    if hidden.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    has = dlogp != 0
    if dentropy is not None:
        has |= dentropy != 0
    rows = (has & (labels != s.ignore)).nonzero().squeeze(1)
    if rows.numel() == 0:  # any one: its gradient is 0, and all is done as for others
        return rows.new_zeros(1)
    # A few rows less are not worth gathering the others.
    return rows if rows.numel() < 0.9 * hidden.shape[0] else None


def _whole(e: Tensor) -> Tensor:
    """Return all of the memory behind E, whose rows are padded."""
    return e.as_strided((e.shape[0] * e.stride(0),), (1,))


def _matrix(memory: Tensor | None, rows: int, words: int) -> Tensor:
    assert memory is not None
    width = padded(words)
    return memory[: rows * width].view(rows, width)[:, :words]
