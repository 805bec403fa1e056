"""Which modules of a model are the blocks that a checkpoint wraps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parameter import is_lazy

from ctxcarry_checkpoint._match import WRAPPERS, closest, matches_path, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ("find_blocks",)

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)
_TOWER_SHARE = 0.01
_SHOWN = 8


def find_blocks(
    model: nn.Module, pattern: str | Sequence[str] | None = None
) -> dict[str, nn.Module]:
    """
    Return the blocks of a model by name.

    Args:
        model: The model.
        pattern: A pattern that the last parts of a name match, or several, such as
            ``"layers.*"``, which finds ``"layers.0"`` and ``"model.layers.0"``. ``*`` stands
            for one part, ``**`` for any number of them. None finds the repeated blocks: the
            members of the largest container whose members share a class, and of others like it
            beside it, such as the towers of a model with several.

    Returns:
        The modules by name, each once, in the order of the model. Of one that
        ``torch.compile`` has wrapped it is the module itself, for the compiler to see all of it.

    Raises:
        TypeError: If a pattern is no text.
        ValueError: If nothing is found, or one that is within another, or one that is never
            called itself.
    """
    if pattern is None:
        return _own(_without_nested(_members(_repeated(model))))
    several = _texts(pattern)
    parts = {each: ("**", *path_of(each)) for each in several}
    found: dict[str, nn.Module] = {}
    matched: set[str] = set()
    seen: set[int] = set()
    for name, module in _named(model):
        hits = {each for each in several if matches_path(parts[each], path_of(name))}
        matched |= hits
        if hits and id(module) not in seen:
            seen.add(id(module))
            found[name] = module
    for each in several:
        if each not in matched:
            raise ValueError(_nothing(model, each))
    for name, module in found.items():
        if isinstance(module, _NEVER_CALLED):
            msg = (
                f"{name!r} is a {type(module).__name__}, which a model never calls itself; "
                f"{name + '.*'!r} finds its members"
            )
            raise ValueError(msg)  # noqa: TRY004  (the pattern is wrong, not its type)
    return _own(_without_nested(found))


def _own(found: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: module._modules.get("_orig_mod") or module for name, module in found.items()}


def _texts(pattern: object) -> list[str]:
    several: list[str] = []
    for each in pattern if isinstance(pattern, (list, tuple, set)) else [pattern]:
        if not isinstance(each, str):
            msg = f'blocks are given as "layers.*", or a list of that; given {each!r}'
            raise TypeError(msg)
        several.append(each)
    if not several or not all(path_of(each) for each in several):
        msg = (
            f'a pattern of blocks names modules, as "layers.*" does; given {several!r}. '
            "None finds the repeated blocks"
        )
        raise ValueError(msg)
    return several


def _named(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Yield the modules within, under all their names, without what wrappers have inside."""
    for name, module in model.named_modules(remove_duplicate=False):
        if name and name.rpartition(".")[2] not in WRAPPERS:
            yield name, module


def _without_nested(found: dict[str, nn.Module]) -> dict[str, nn.Module]:
    names = {id(module): name for name, module in found.items()}
    for name, module in found.items():
        for inner in module.modules():
            if inner is not module and id(inner) in names:
                msg = (
                    f"the block {names[id(inner)]!r} is within the block {name!r}, and would be "
                    "recomputed twice; give a pattern that finds one of them"
                )
                raise ValueError(msg)
    return found


def _repeated(model: nn.Module) -> dict[str, nn.Module]:
    """Return the containers of the repeated blocks, by name."""
    able = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _CONTAINERS) and _shared_class(model, module) is not None
    }
    outermost: dict[str, nn.Module] = {}
    within: set[int] = set()
    for name, module in able.items():
        if id(module) not in within:
            outermost[name] = module
        within |= {id(inner) for inner in module.modules()}
    if not outermost:
        msg = (
            f"{type(model).__name__} has no repeated blocks: no ModuleList, ModuleDict or "
            f"Sequential has members that share a class of their own. {_containers(model)}. "
            "Say which modules are the blocks, as in blocks='layers.*'"
        )
        raise ValueError(msg)
    sizes = {name: _size(module) for name, module in outermost.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    shared = _shared_class(model, outermost[largest])
    return {
        name: module
        for name, module in outermost.items()
        if sizes[name] >= sizes[largest] * _TOWER_SHARE or _shared_class(model, module) is shared
    }


def _members(containers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    found: dict[nn.Module, str] = {}
    for name, container in containers.items():
        for child, module in container.named_children():
            found.setdefault(module, f"{name}.{child}" if name else child)
    return {name: module for module, name in found.items()}


def _shared_class(model: nn.Module, container: nn.Module) -> type | None:
    """
    Return the class that all members have, if that makes them blocks.

    Single layers of torch's are none. A base class counts where the members differ, as in a
    model of attention and state-space layers, unless it is one that any module there has.
    """
    members = [_unwrapped(member) for member in container.children()]
    if not members or isinstance(members[0], _CONTAINERS):
        return None
    first = type(members[0])
    if all(type(member) is first for member in members):
        single = first.__module__.startswith("torch.nn.modules.")
        return first if not single or all(any(m.children()) for m in members) else None
    for base in first.__mro__[1:]:
        own = not base.__module__.startswith(("torch.", "builtins"))
        general = isinstance(model, base) or isinstance(container, base)
        if own and not general and all(isinstance(member, base) for member in members):
            return base
    return None


def _unwrapped(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if name in WRAPPERS:
            return _unwrapped(child)
    return module


def _size(module: nn.Module) -> int:
    return sum(0 if is_lazy(each) else each.numel() for each in module.parameters())


def _nothing(model: nn.Module, pattern: str) -> str:
    like = closest(pattern.replace("*", "0"), [name for name, _ in _named(model)])
    hint = f"Closest: {', '.join(map(repr, like))}. " if like else ""
    return f"no module of {type(model).__name__} matches {pattern!r}. {hint}{_containers(model)}"


def _containers(model: nn.Module) -> str:
    found = []
    for name, module in model.named_modules():
        if isinstance(module, _CONTAINERS):
            kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in module.children()))
            label = repr(name) if name else "itself"
            found.append(f"{label} ({type(module).__name__} of {len(module)}: {kinds})")
    if not found:
        return "It has no ModuleList, ModuleDict or Sequential"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"Its containers: {', '.join(found[:_SHOWN])}{more}"
