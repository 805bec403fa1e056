"""The rule by which TorchTitan checkpoints, made of the rules here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ctxcarry_checkpoint._match import Names, closest, matches_path, path_of
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._policy import First, Policy
from ctxcarry_checkpoint._products import DEVICE_TO_HOST, SizeTest, is_device_to_host
from ctxcarry_checkpoint._rules import EveryKth, Rule, When

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("linear_shapes", "torchtitan")

_PRODUCTS = Names(exact=frozenset({"aten.linear.default", "aten.mm.default"}))

_SAVED = Names(
    exact=frozenset(
        {
            "_c10d_functional.all_to_all_single.default",
            "_c10d_functional.reduce_scatter_tensor.default",
            "aten._efficient_attention_forward.default",
            "aten._flash_attention_forward.default",
            "aten._scaled_dot_product_attention_math.default",
            "aten._scaled_dot_product_cudnn_attention.default",
            "aten._scaled_dot_product_efficient_attention.default",
            "aten._scaled_dot_product_flash_attention.default",
            "aten._scaled_dot_product_fused_attention_overrideable.default",
            "aten._scaled_mm.default",
            "aten.addmm.default",
            "aten.bmm.default",
            "aten.convolution.default",
            "aten.convolution_backward.default",
            # The largest magnitude, by which low precision is scaled.
            "aten.max.default",
            # Made again, it may choose other experts.
            "aten.topk.default",
            "aten.upsample_bilinear2d.default",
            "deepep.combine.default",
            "deepep.dispatch.default",
            "flex_attention",
            "hybridep.combine.default",
            "hybridep.dispatch.default",
            "inductor_compiled_code",
            "torch_attn._varlen_attn.default",
        }
    )
)


def torchtitan(recompute_shapes: Iterable[tuple[int, int]] = ()) -> Policy:
    """
    Decide as TorchTitan 0.3's SelectiveAC does.

    It saves attention, products, exchanged and expensive results, and what goes from a device
    to the CPU; but of ``mm`` and ``linear`` it recomputes every second one. Of everything else
    it has no opinion.

    Args:
        recompute_shapes: Inner size and columns of those that are always recomputed, and not
            counted: ``linear_shapes(block, "moe.router.gate")`` is TorchTitan's default.
    """
    shapes = frozenset((int(inner), int(columns)) for inner, columns in recompute_shapes)
    to_host = Names(packets=frozenset(DEVICE_TO_HOST.packets - {"aten.copy_"}))
    return TorchTitan(
        When(Rule("to the CPU", Action.SAVE, to_host, optional=True), is_device_to_host),
        *([When(_products(Action.RECOMPUTE), SizeTest(shapes), sizes=True)] if shapes else []),
        EveryKth(_products(Action.SAVE), every=2, first=0),
        _products(Action.RECOMPUTE),
        Rule("expensive", Action.SAVE, _SAVED, optional=True),
    )


class TorchTitan(First):
    """The policies that TorchTitan's rule is made of."""

    def __repr__(self) -> str:
        return "torchtitan()"


def linear_shapes(module: nn.Module, *patterns: str) -> frozenset[tuple[int, int]]:
    """
    Return inner size and columns of the products of linear layers, for `matmuls_by_shape`.

    Args:
        module: A block or a model.
        patterns: What the last parts of the layers' names match, such as ``"router.gate"``.

    Raises:
        ValueError: If a pattern matches nothing, or something else than a linear layer.
    """
    shapes: set[tuple[int, int]] = set()
    names = {name: each for name, each in module.named_modules() if name}
    for pattern in patterns:
        parts = ("**", *path_of(pattern))
        found = [name for name in names if matches_path(parts, path_of(name))]
        if not found:
            like = closest(pattern, names)
            hint = f"; closest: {', '.join(map(repr, like))}" if like else ""
            msg = f"no module of {type(module).__name__} matches {pattern!r}{hint}"
            raise ValueError(msg)
        for name in found:
            layer = names[name]
            if not isinstance(layer, nn.Linear):
                msg = f"{name!r} is a {type(layer).__name__}, and no linear layer"
                raise ValueError(msg)  # noqa: TRY004  (the pattern is wrong, not its type)
            shapes.add((layer.in_features, layer.out_features))
    return frozenset(shapes)


def _products(action: Action) -> Rule:
    return Rule("products", action, _PRODUCTS, optional=True)
