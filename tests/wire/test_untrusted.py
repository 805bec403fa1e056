"""Bytes that nobody vouches for: nothing of them is imported, unpickled or called."""

import base64
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import wire_subjects

import ctxcarry
from ctxcarry import CtxCarryError, Snapshot, WireError
from ctxcarry.errors import CtxCarryWarning

REST = {"torch.grad_mode": ["v", False]}


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def pickled(value):
    """Return the entry of a pickle."""
    return ["p", base64.b85encode(pickle.dumps(value)).decode()]


@pytest.fixture
def mark(tmp_path):
    """Return the path of a file that is made when something is executed."""
    return tmp_path / "executed"


@pytest.fixture
def module(tmp_path, mark, monkeypatch):
    """Return the name of a module, not imported yet, that makes the file when it is."""
    name = "wire_never_imported"
    (tmp_path / f"{name}.py").write_text(
        "import contextvars, pathlib\n"
        f"pathlib.Path({str(mark)!r}).touch()\n"
        "variable = contextvars.ContextVar('variable', default='unset')\n"
        "def function(*a): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def check_refused(data, mark, **registry):
    """Check that `data` executes nothing, and that the rest is carried, or nothing if strict."""
    before = set(sys.modules)
    with pytest.warns(CtxCarryWarning):
        loaded = Snapshot.loads(data, **registry)
    if not registry:
        assert loaded.run(torch.is_grad_enabled) is False
    with pytest.raises(WireError):
        Snapshot.loads(data, strict=True, **registry)
    assert (False, set()) == (mark.exists(), set(sys.modules) - before - {"difflib"})


PLACES = ("triton.allocator", "torch.grad_mode", "torch.autocast", "torch.default_device")
PLACES += ("torch.device_mesh", "process_groups", "torchtitan.mesh", "contextvars", "nobody's")


@pytest.mark.parametrize("name", PLACES)
def test_pickle_bomb_in_place_of_a_state(written, mark, name):
    """A pickle in place of any carrier's payload is not unpickled."""
    rest = {} if name in REST else REST
    data = written({name: pickled(Bomb(mark)), **rest})
    if rest:
        check_refused(data, mark)
    else:
        with pytest.raises(WireError):
            Snapshot.loads(data, strict=True)
    assert not mark.exists()


def test_pickle_bomb_in_a_context_variable(written, mark):
    """A pickle in place of the value of a ContextVar that is here is not unpickled."""
    check_refused(
        written(
            {"contextvars": ["v", [{}, {"wire_subjects:VARIABLE": pickled(Bomb(mark))[1]}]], **REST}
        ),
        mark,
    )


def test_pickle_bomb_in_a_carrier_of_pickles(written, mark, registry):
    """Nor where the carrier does take pickles."""
    check_refused(written({"local": pickled(Bomb(mark))}), mark, registry=registry)


@pytest.mark.parametrize("name", PLACES[:1] + PLACES[1:7])
def test_trust_is_not_enough_for_carriers_of_plain_states(written, mark, name):
    """A carrier whose states are plain refuses a pickle even from a sender who is trusted."""
    with pytest.raises(WireError):
        Snapshot.loads(written({name: pickled(Bomb(mark))}), trusted=True, strict=True)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["triton.allocator", "triton.profile_allocator"])
@pytest.mark.parametrize("address", ["os:system", "builtins:exec", "wire_never_imported:function"])
def test_allocator_named_by_a_stranger(written, module, mark, name, address):
    """An allocator is not looked up, whether its module is imported already or not."""
    pytest.importorskip("triton")
    check_refused(written({name: ["v", address], **REST}), mark)


def test_context_variable_of_an_unimported_module(written, module, mark):
    """The address of a ContextVar does not get its module imported."""
    check_refused(written({"contextvars": ["v", [{f"{module}:variable": 1}, {}]], **REST}), mark)


def test_trusted_imports(written, module, mark):
    """From a sender who is trusted the same bytes do import the module, and set the variable."""
    data = written({"contextvars": ["v", [{f"{module}:variable": 1}, {}]]})
    loaded = Snapshot.loads(data, trusted=True, strict=True)
    assert (True, 1) == (mark.exists(), loaded.run(sys.modules[module].variable.get))


ADDRESSES = ["os:environ", "sys:modules", "wire_subjects:Point", "wire_subjects", "wire_subjects:"]
ADDRESSES += [
    ":VARIABLE",
    "",
    ".wire_subjects:VARIABLE",
    "wire_subjects:VARIABLE.name",
    "..:x",
    ":",
]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_of_something_else(written, trusted, address):
    """An address where there is no ContextVar is skipped with a warning, or an error if strict."""
    data = written({"contextvars": ["v", [{address: 1}, {}]], **REST})
    with pytest.raises(WireError):
        Snapshot.loads(data, trusted=trusted, strict=True)
    with pytest.warns(CtxCarryWarning):
        assert Snapshot.loads(data, trusted=trusted).run(torch.is_grad_enabled) is False


def test_a_module_that_cannot_be_imported(written, tmp_path, monkeypatch):
    """A trusted address whose module fails when imported costs that variable only."""
    (tmp_path / "wire_broken.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    data = written({"contextvars": ["v", [{"wire_broken:variable": 1}, {}]], **REST})
    with pytest.warns(CtxCarryWarning, match="wire_broken"):
        assert Snapshot.loads(data, trusted=True).run(torch.is_grad_enabled) is False


DTYPES = """
import sys, torch
from ctxcarry import Snapshot, CtxCarryError
from ctxcarry._wire import encode
before = set(sys.modules)
for name in ("_dynamo", "_inductor", "_export", "onnx"):
    data = encode({"torch.autocast": ["v", [1, True, {"cpu": [True, name]}]]})
    try:
        Snapshot.loads(data, strict=True)
    except CtxCarryError:
        pass
print(sorted(n for n in set(sys.modules) - before if n.count(".") == 1 and "torch." in n))
"""


def test_dtype_does_not_import():
    """The name of a dtype does not get one of torch's lazy modules imported."""
    root = str(Path(ctxcarry.__file__).parents[1])
    command = [sys.executable, "-W", "ignore", "-c", DTYPES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    assert "[]" == done.stdout.strip()


WRONG = [
    None,
    1,
    -1,
    10**30,
    0.5,
    "",
    "x",
    [],
    [1],
    {},
    {"x": 1},
    [[]],
    {"cpu": 1},
    "true",
    "os:system",
]
# Which of these mean something to a carrier.
RIGHT = {
    "torch.device_mesh": ([],),
    "process_groups": ({},),
    "torchtitan.mesh": ({},),
    "triton.allocator": ("os:system",),
}
STATES = ["torch.grad_mode", "torch.inference_mode", "torch.multithreading", "torch.autocast"]
STATES += ["torch.default_device", "torch.device_mesh", "torch.process_group", "process_groups"]
STATES += ["torchtitan.mesh", "triton.allocator", "contextvars"]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_wrong_types(written, world, name, trusted):
    """A state of a type that its carrier never wrote is refused and not taken for another one."""
    accepted = []
    for value in WRONG:
        if value in RIGHT.get(name, ()):
            continue
        try:
            Snapshot.loads(written({name: ["v", value]}), trusted=trusted, strict=True)
            accepted.append(value)
        except CtxCarryError:
            pass
    assert [] == accepted


AUTOCAST = [[-3, True, {}], ["1", True, {}], [10**9, True, {}], [1.5, True, {}], [True, True, {}]]
AUTOCAST += [
    [1, "no", {}],
    [1, True, {"cpu": ["no", "float16"]}],
    [1, True, {"cpu": [True, "ones"]}],
]


@pytest.mark.parametrize("value", AUTOCAST)
def test_wrong_autocast(written, value):
    """An autocast state that no thread can be in is refused, and not entered a billion times."""
    with pytest.raises(WireError):
        Snapshot.loads(written({"torch.autocast": ["v", value]}), strict=True)


@pytest.mark.parametrize("value", [5, "a", [1], {"secret": 1}, {"a": 1, "__class__": 2}])
def test_thread_local_fields(written, registry, value):
    """Bytes reach only the fields that a ThreadLocalCarrier was given, and by a dict only."""
    data = written({"local": ["v", value]})
    registry.local.a = "here"
    with pytest.raises(WireError):
        Snapshot.loads(data, strict=True, registry=registry)
    assert {"a": "here"} == vars(registry.local)


@pytest.mark.parametrize(
    "entry", ["vx", {"v": 1, "x": 2}, ["v"], ["v", 1, 2], ["x", 1], ["c"], None, []]
)
def test_wrong_entries_of_variables(written, entry):
    """What is not two maps, or no pickle where one is said to be, is refused."""
    for variables in (entry, [entry, entry], [{}, {"wire_subjects:VARIABLE": entry}]):
        data = written({"contextvars": ["v", variables]})
        for trusted in (False, True):
            with pytest.raises(WireError):
                Snapshot.loads(data, strict=True, trusted=trusted)
    assert "unset" == wire_subjects.VARIABLE.get()
