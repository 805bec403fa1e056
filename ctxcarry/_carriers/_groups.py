"""
Process groups and meshes by name, ranks and shape.

The only file that touches the tables of ``torch.distributed.distributed_c10d``.
Nothing here makes a group: every rank of it would have to take part.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from ctxcarry._carrier import GONE
from ctxcarry.errors import ContextMismatchError, NotPortableError, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed import ProcessGroup

__all__ = ("dump_group", "dump_mesh", "find_group", "find_mesh", "groups_again", "meshes_again")

# A mesh and a group never change, and torch works out their ranks anew each time.
_dumped: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


def dump_group(group: ProcessGroup) -> dict[str, Any]:
    """Return the name and the global ranks of `group`."""
    dumped = _dumped.get(group)
    if dumped is None:
        try:
            dumped = {"name": group.group_name, "ranks": dist.get_process_group_ranks(group)}
        except (KeyError, RuntimeError):
            msg = f"torch.distributed does not list {group!r}, so that it has no name elsewhere"
            raise NotPortableError(msg) from None
        _dumped[group] = dumped
    return dumped


def find_group(context: str, payload: dict[str, Any]) -> ProcessGroup:
    """
    Return the group of this process that `payload` names.

    Args:
        context: The context that it is for, for the message.
        payload: What `dump_group` returned in the other process.

    Raises:
        NotPortableError: If this process has no process groups at all.
        ContextMismatchError: If the group is not there or has other ranks.
    """
    name, ranks = _fields(payload, "name", "ranks")
    _require_groups()
    try:
        group = _resolve(name)
    except (RuntimeError, TypeError):
        group = None
    if group is None or dump_group(group)["ranks"] != ranks:
        here = {own: group for group, own in c10d._world.pg_names.items()}
        listing = "; ".join(
            f"{n!r} of ranks {dump_group(g)['ranks']}" for n, g in sorted(here.items())
        )
        msg = (
            f"{context}: the process group {name!r} of ranks {ranks} was current where the work "
            f"was handed over. This process has {listing}. Make the same groups in the same order "
            "in both processes, or leave it out with "
            f"ctxcarry.suppress({context.partition(':')[0]!r})"
        )
        raise ContextMismatchError(msg)
    found: ProcessGroup = group
    return found


def dump_mesh(mesh: DeviceMesh) -> dict[str, Any]:
    """Return the device type of `mesh`, the names of its dimensions and its ranks."""
    dumped = _dumped.get(mesh)
    if dumped is None:
        names = mesh.mesh_dim_names
        dumped = _dumped[mesh] = {
            "device": mesh.device_type,
            "names": None if names is None else list(names),
            "ranks": mesh.mesh.tolist(),
        }
    return dumped


def find_mesh(context: str, payload: dict[str, Any]) -> DeviceMesh:
    """
    Return the mesh of this process that is as `payload` says.

    Raises:
        NotPortableError: If this process has no process groups at all.
        ContextMismatchError: If there is no such mesh.
    """
    _fields(payload, "device", "names", "ranks")
    _require_groups()
    world = dist.group.WORLD
    key = repr(payload)
    found = _found.get(key)
    if found is not None and found[0]() is world:
        mesh = found[1]()
        if mesh is not None:
            return mesh
    here = _meshes()
    for mesh in here:
        if dump_mesh(mesh) == payload and _is_of_this_world(mesh):
            _found[key] = weakref.ref(world), weakref.ref(mesh)
            return mesh
    listing = "; ".join(_in_words(dump_mesh(mesh)) for mesh in here) or "no mesh"
    msg = (
        f"{context}: {_in_words(payload)} was current where the work was handed over. This process "
        f"has {listing}. Make the same mesh in both processes (and keep a reference to it), or "
        f"leave it out with ctxcarry.suppress({context!r})"
    )
    raise ContextMismatchError(msg)


def groups_again(names: Iterable[str], groups: Iterable[ProcessGroup]) -> Callable[[], Any] | None:
    """
    Return what returns `groups` as long as they go by `names` here, and else `GONE`.

    None if torch does not list them.
    """
    places = [(name, weakref.ref(group)) for name, group in zip(names, groups)]

    def again() -> Any:
        listed = c10d._world.pg_names
        found = []
        for name, reference in places:
            group: Any = reference()
            if listed.get(group) != name:
                return GONE
            found.append(group)
        return found

    return None if again() is GONE else again


def meshes_again(context: str, payload: list[dict[str, Any]]) -> Callable[[], Any]:
    """Return what finds the meshes as long as they are there in this world, else `GONE`."""
    world = weakref.ref(c10d._world.default_pg)
    references = tuple(weakref.ref(find_mesh(context, mesh)) for mesh in payload)

    def again() -> Any:
        here = c10d._world.default_pg
        if here is None or here is not world():
            return GONE
        found = []
        for reference in references:
            mesh = reference()
            if mesh is None:
                return GONE
            found.append(mesh)
        return tuple(found)

    return again


_resolve: Any = vars(c10d)["_resolve_process_group"]
_found: dict[str, tuple[weakref.ref[Any], weakref.ref[DeviceMesh]]] = {}


def _is_of_this_world(mesh: DeviceMesh) -> bool:
    """Say whether the groups of `mesh` are those of now; a mesh may outlive its world."""
    place = mesh.get_coordinate()
    if place is None:  # this rank is in no group of it
        return True
    for dimension in range(mesh.ndim):
        row = tuple(slice(None) if d == dimension else i for d, i in enumerate(place))
        try:
            group = mesh.get_group(dimension)
        except (RuntimeError, KeyError, ValueError):
            return False
        if (
            group not in c10d._world.pg_names
            or dump_group(group)["ranks"] != mesh.mesh[row].tolist()
        ):
            return False
    return True


def _fields(payload: object, *names: str) -> list[Any]:
    try:
        return [payload[name] for name in names]  # type: ignore[index]
    except (KeyError, TypeError):
        msg = f"{payload!r} has not the fields {', '.join(names)}"
        raise WireError(msg) from None


def _require_groups() -> None:
    if not dist.is_initialized():
        msg = "torch.distributed is not initialised in this process"
        raise NotPortableError(msg)


def _meshes() -> list[DeviceMesh]:
    # Torch keeps no list of its meshes. This takes tens of milliseconds, once for
    # each mesh that is asked for.
    return [o for o in gc.get_objects() if issubclass(type(o), DeviceMesh)]


def _in_words(payload: dict[str, Any]) -> str:
    names = "unnamed" if payload["names"] is None else "/".join(payload["names"])
    return f"the {payload['device']} mesh {names} of ranks {payload['ranks']}"
