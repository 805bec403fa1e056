"""What ranks have to agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ctxcarry_checkpoint._kinds import Block, Kind

__all__ = ("must_agree",)


def must_agree(blocks: Iterable[Block | Kind]) -> bool:
    """
    Say whether all ranks have to run the same operators of these blocks again.

    They do where one waits there for another. No two ranks measure the same time or the same
    peak, so that nothing that is measured may decide then.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return False
    return any(op.joint for block in blocks for op in block.ops)
