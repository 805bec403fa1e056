"""Bytes that are cut short, of another version, or changed at random."""

import json
import random
import warnings
from contextvars import copy_context
from zlib import crc32

import pytest
import torch
import wire_subjects

import ctxcarry
from ctxcarry import CtxCarryError, Snapshot, WireError, process_groups
from ctxcarry.errors import CtxCarryWarning

MUTATIONS = 10_000


def resealed(body):
    """Return `body` with a header that fits it, as no accident but a stranger would."""
    return b"CTXC\x01" + crc32(body).to_bytes(4, "big") + body


@pytest.fixture
def valid(mesh):
    """Return the bytes of a snapshot in which much is set."""
    triton = pytest.importorskip("triton")

    def dumped():
        triton.set_allocator(wire_subjects.allocate)
        wire_subjects.V0.set("text")
        wire_subjects.V1.set({"k": [1, 2.5, None]})
        wire_subjects.V2.set((1, 2))
        groups = process_groups.use(tp=mesh.get_group("tp"))
        with mesh, groups, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return ctxcarry.capture().dumps()

    return copy_context().run(dumped)


def state():
    """Return what the snapshot would set on this thread."""
    return (
        [v.get("unset") for v in wire_subjects.TEN],
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        list(torch.distributed.device_mesh._mesh_resources.mesh_stack),
        process_groups.roles(),
    )


def load_all(damaged, **options):
    """Load each, run something under what can be loaded; count errors, warnings and the loaded."""
    errors = warned = loaded = 0
    before = state()
    for data in damaged:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                snapshot = Snapshot.loads(data, **options)
            except CtxCarryError:
                errors += 1
            else:
                loaded += 1
                snapshot.run(int)
            others = [w for w in caught if w.category is not CtxCarryWarning]
            assert [] == others
            warned += bool(caught)
        assert before == state()
    return errors, warned, loaded


def test_cut_at_every_length(valid):
    """A snapshot that ends early is a WireError, wherever it ends."""
    for length in range(len(valid)):
        with pytest.raises(WireError):
            Snapshot.loads(valid[:length])
    assert "text" == Snapshot.loads(valid, trusted=True).run(wire_subjects.V0.get)


def test_more_than_there_should_be(valid):
    """Bytes after the end are a WireError."""
    with pytest.raises(WireError):
        Snapshot.loads(valid + b" ")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_versions(valid, version):
    """Another version is told with both numbers and the fix."""
    data = valid[:4] + bytes((version,)) + valid[5:]
    with pytest.raises(WireError, match=rf"version {version} .* reads 1: use the same version"):
        Snapshot.loads(data, strict=False)


@pytest.mark.parametrize("data", ["text", None, 5, [1], object()])
def test_not_bytes(data):
    """What is not bytes is a WireError that says so."""
    with pytest.raises(WireError, match="loaded from bytes"):
        Snapshot.loads(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_kinds_of_bytes(written, kind):
    """Everything that holds bytes is loaded."""
    data = kind(written({"torch.grad_mode": ["v", False]}))
    assert Snapshot.loads(data, strict=True).run(torch.is_grad_enabled) is False


BODIES = [
    b"[]",
    b"1",
    b"null",
    b'"x"',
    b"{",
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":1}',
    b'{"a":[]}',
]
BODIES += [b'{"a":["p",1]}', b'{"a":["c",1]}', b'{"a":["x",1]}', b'{"a":["v",%s]}' % (b"9" * 5000)]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_sealed_nonsense(body):
    """A body with the right checksum that is no map of entries is a WireError."""
    with pytest.raises(WireError):
        Snapshot.loads(resealed(body), trusted=True)


def test_unknown_carrier(written):
    """An unknown carrier is skipped with a warning that names it, or an error if strict."""
    data = written({"nobody's": ["v", 1], "torch.grad_mode": ["v", False]})
    with pytest.warns(CtxCarryWarning, match="nobody's"):
        assert Snapshot.loads(data).run(torch.is_grad_enabled) is False
    with pytest.raises(WireError, match="nobody's"):
        Snapshot.loads(data, strict=True)


def test_one_bad_part_and_all_is_as_before(written):
    """Nothing is applied by loading, and a strict error leaves no part behind."""
    data = written(
        {
            "torch.grad_mode": ["v", False],
            "torch.autocast": ["v", "wrong"],
            "contextvars": ["v", [{"wire_subjects:V0": 1}, {}]],
        }
    )
    before = state()
    with pytest.raises(WireError, match=r"torch\.autocast"):
        Snapshot.loads(data, strict=True)
    with pytest.warns(CtxCarryWarning):
        loaded = Snapshot.loads(data)
    assert before == state()
    assert (False, 1) == loaded.run(lambda: (torch.is_grad_enabled(), wire_subjects.V0.get()))


def mutated(data, chance):
    """Return `data` with up to four bytes changed, dropped or doubled."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed))
        how = chance.randrange(4)
        if how == 0:
            changed[place] ^= 1 << chance.randrange(8)
        elif how == 1:
            changed[place] = chance.randrange(256)
        elif how == 2:
            del changed[place]
        else:
            changed.insert(place, chance.choice(b'[]{}",:0123456789vpc'))
    return bytes(changed)


def test_random_mutations(valid):
    """Ten thousand random changes: each is noticed, and nothing is applied."""
    chance = random.Random(20)  # noqa: S311 - to be repeated
    damaged = [m for m in (mutated(valid, chance) for _ in range(MUTATIONS)) if m != valid]
    assert (len(damaged), 0, 0) == load_all(damaged, strict=False)


@pytest.mark.parametrize("strict", [False, True])
def test_random_mutations_with_a_right_checksum(valid, strict):
    """Behind a right checksum a change is an error of ours, a warning, or another valid value."""
    chance = random.Random(23)  # noqa: S311 - to be repeated
    damaged = [resealed(mutated(valid[9:], chance)) for _ in range(MUTATIONS // 40)]
    errors, warned, loaded = load_all(damaged, strict=strict)
    assert (len(damaged), True) == (errors + loaded, errors > 0)
    assert strict is (warned == 0)


def swapped(entries, chance):
    """Return `entries` as JSON with one value, anywhere, replaced by one of another type."""
    entries = json.loads(json.dumps(entries))
    place = entries
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = chance.choice(list(keys))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.2:
            place[key] = chance.choice([None, True, 1, -1, 2.5, "x", [], {}, [1], {"x": 1}])
            return json.dumps(entries).encode()
        place = inner


def test_random_types(valid):
    """Any part of a snapshot replaced by one of another type is an error of ours or a warning."""
    chance = random.Random(27)  # noqa: S311 - to be repeated
    entries = json.loads(valid[9:])
    damaged = [resealed(swapped(entries, chance)) for _ in range(MUTATIONS // 40)]
    errors, _, loaded = load_all(damaged, strict=False)
    assert (len(damaged), True) == (errors + loaded, errors > 0)
