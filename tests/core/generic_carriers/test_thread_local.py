"""The carrier of a thread-local."""

import copy
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque

import pytest

from ctxcarry import MISSING, Registry, ThreadLocalCarrier


@pytest.fixture
def module():
    """Return an importable module with some threading.locals."""
    module = types.ModuleType("ctxcarry_test_module")
    module.state = threading.local()
    module.other = threading.local()
    module.holder = types.SimpleNamespace(state=threading.local())
    module.number = 3
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_thread_local_by_place(module):
    """A threading.local is found as module and attribute, and named after both."""
    carrier = ThreadLocalCarrier("ctxcarry_test_module:state")
    assert "ctxcarry_test_module.state" == carrier.name
    module.state.value = 1
    assert {"value": 1} == carrier.capture()


def test_thread_local_by_nested_place(module):
    """The attribute may be a path of attributes."""
    module.holder.state.value = 2
    carrier = ThreadLocalCarrier("ctxcarry_test_module:holder.state", name="n")
    assert ("n", {"value": 2}) == (carrier.name, carrier.capture())


def test_thread_local_in_a_missing_module():
    """A module that does not exist is an ImportError that names it."""
    with pytest.raises(ImportError, match="ctxcarry_no_such_module"):
        ThreadLocalCarrier("ctxcarry_no_such_module:state")


def test_thread_local_with_a_wrong_attribute(module):
    """An attribute that does not exist is an error that lists the locals of the module."""
    with pytest.raises(AttributeError, match=r"no attribute 'stat'.*other, state"):
        ThreadLocalCarrier("ctxcarry_test_module:stat")


@pytest.mark.parametrize("place", ["state", "module:", ":state", ""])
def test_thread_local_place_of_a_wrong_form(place):
    """A place that is not ``module:attribute`` is a ValueError that says the form."""
    with pytest.raises(ValueError, match="module:attribute"):
        ThreadLocalCarrier(place)


def test_thread_local_that_is_none(module):
    """Something else at that place is a TypeError that names the carriers that may fit."""
    with pytest.raises(TypeError, match="ContextVarCarrier"):
        ThreadLocalCarrier("ctxcarry_test_module:number")
    with pytest.raises(TypeError, match=r"not a threading\.local"):
        ThreadLocalCarrier({}, name="n")


def test_thread_local_object_needs_a_name():
    """An object has no place to be named after."""
    with pytest.raises(ValueError, match="name"):
        ThreadLocalCarrier(threading.local())


def test_thread_local_round_trip():
    """The captured fields are applied, others are deleted, and undo puts all back."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    local.a, local.b = 1, None
    state = carrier.capture()
    del local.a
    local.b, local.c = 2, 3
    token = carrier.apply(state)
    assert {"a": 1, "b": None} == vars(local)
    carrier.undo(token)
    assert {"b": 2, "c": 3} == vars(local)


def test_thread_local_missing_deletes():
    """Where nothing was set nothing is there, and undo puts the very objects back."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    assert MISSING is carrier.capture()
    local.stack = stack = ["far"]
    token = carrier.apply(MISSING)
    assert not hasattr(local, "stack")
    carrier.undo(token)
    assert stack is local.stack


def test_thread_local_undo_really_deletes():
    """Undo deletes what was not set, also what the work added meanwhile."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    local.a = 1
    state = carrier.capture()
    del local.a
    token = carrier.apply(state)
    local.added = 2
    carrier.undo(token)
    assert {} == vars(local)


@pytest.mark.parametrize("fields", ["a", ["a"], iter(["a"])])
def test_thread_local_fields(fields):
    """With ``fields`` only those are carried; the others are not touched."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l", fields=fields)
    local.a, local.b = 1, 1
    state = carrier.capture()
    assert {"a": 1} == state
    local.a, local.b = 2, 2
    token = carrier.apply(state)
    local.b = 3
    assert {"a": 1, "b": 3} == vars(local)
    carrier.undo(token)
    assert {"a": 2, "b": 3} == vars(local)


def test_thread_local_field_that_is_not_set():
    """A chosen field that was not set is deleted, and comes back."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l", fields=["a", "b"])
    local.b = 1
    state = carrier.capture()
    local.a = 2
    token = carrier.apply(state)
    assert {"b": 1} == vars(local)
    carrier.undo(token)
    assert {"a": 2, "b": 1} == vars(local)


CONTAINERS = [
    [1],
    {"k": 1},
    {1},
    deque([1]),
    bytearray(b"1"),
    OrderedDict(k=1),
    defaultdict(list, k=[1]),
]


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: type(c).__name__)
def test_containers_are_copied_at_capture_and_at_apply(container):
    """What the owner or the work changes in place changes neither the snapshot nor the other."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    original = copy.deepcopy(container)
    local.value = container
    state = carrier.capture()
    container.clear()
    for _ in range(2):
        token = carrier.apply(state)
        assert original == local.value
        assert type(original) is type(local.value)
        local.value.clear()
        carrier.undo(token)
        assert container is local.value


def test_copies_keep_a_containers_class():
    """A container of a class of one's own is still one after it was carried."""

    class Stack(list):
        def top(self):
            return self[-1]

    class Table(dict):
        pass

    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    local.stack, local.table = Stack([1, 2]), Table(k=1)
    state = carrier.capture()
    del local.stack, local.table
    token = carrier.apply(state)
    assert (Stack, Table) == (type(local.stack), type(local.table))
    assert 2 == local.stack.top()
    carrier.undo(token)


def test_inner_objects_are_shared():
    """The copy is one level deep: meshes and tensors in a stack stay the same objects."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    mesh = object()
    local.stack = [mesh]
    state = carrier.capture()
    local.stack = []
    token = carrier.apply(state)
    assert mesh is local.stack[0]
    carrier.undo(token)


def test_capture_does_not_change_anything():
    """Capturing leaves the very objects in place."""
    local = threading.local()
    carrier = ThreadLocalCarrier(local, name="l")
    local.stack = stack = [1]
    carrier.capture()
    assert stack is local.stack
    assert [1] == stack


def test_nested_captures_are_independent():
    """A snapshot taken under another keeps its own state when the outer one's changes."""
    local = threading.local()
    registry = Registry()
    registry.register(ThreadLocalCarrier(local, name="l"))
    local.stack = ["outer"]
    outer = registry.capture()

    def work():
        local.stack.append("inner")
        taken = registry.capture()
        local.stack.append("later")
        return taken

    inner = outer.run(work)
    local.stack.append("far")
    assert ["outer", "inner"] == inner.run(lambda: local.stack)
    assert ["outer"] == outer.run(lambda: local.stack)
    assert ["outer", "far"] == local.stack


def test_local_whose_threads_share_an_argument(in_thread):
    """Work on another thread does not reach the object that ``__init__`` shares (trap 6)."""

    class Stack(threading.local):
        def __init__(self, items):
            self.items = items

    shared = ["base"]
    local = Stack(shared)
    registry = Registry()
    registry.register(ThreadLocalCarrier(local, name="l"))
    assert shared is in_thread(lambda: local.items)
    snapshot = registry.capture()

    def work():
        local.items.append("work")
        return list(local.items)

    def elsewhere():
        seen = snapshot.run(work)
        return seen, local.items is shared

    assert (["base", "work"], True) == in_thread(elsewhere)
    assert ["base"] == shared
    assert shared is local.items


def test_local_whose_init_sets_fields(in_thread):
    """A field that ``__init__`` sets in each thread is replaced, and given back."""

    class Counter(threading.local):
        def __init__(self):
            self.count = 0

    local = Counter()
    registry = Registry()
    registry.register(ThreadLocalCarrier(local, name="l"))
    local.count = 5
    snapshot = registry.capture()
    assert (5, 0) == in_thread(lambda: (snapshot.run(lambda: local.count), local.count))
