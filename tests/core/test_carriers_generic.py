"""The generic carriers: any ContextVar, any threading.local, any get and set, a registry."""

import copy
import ctypes
import gc
import pickle
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from contextvars import Context, ContextVar, copy_context

import pytest

import ctxcarry
from ctxcarry import (
    MISSING,
    UNCHANGED,
    CarrierError,
    ContextVarCarrier,
    ContextVarsRegistryCarrier,
    LeakError,
    Registry,
    ThreadLocalCarrier,
    ValueCarrier,
)

# ---------------------------------------------------------------- MISSING


@pytest.mark.parametrize("marker", [MISSING, UNCHANGED], ids=repr)
def test_markers_stay_themselves(marker):
    """Copying and pickling a marker gives the marker itself."""
    assert marker is copy.copy(marker)
    assert marker is copy.deepcopy({"a": marker})["a"]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert marker is pickle.loads(pickle.dumps(marker, protocol))  # noqa: S301


def test_missing_is_not_none():
    """A state of None is set, and is not what "not set" looks like."""
    assert MISSING is not None
    assert MISSING != None  # noqa: E711 - equality is the question
    assert "MISSING" == repr(MISSING)


# ---------------------------------------------------------------- ContextVarCarrier


def test_contextvar_carrier_takes_the_name_of_its_variable():
    """The carrier is called as the variable unless another name is given."""
    variable = ContextVar("variable")
    assert "variable" == ContextVarCarrier(variable).name
    assert "app.v" == ContextVarCarrier(variable, name="app.v").name
    assert variable is ContextVarCarrier(variable).variable


@pytest.mark.parametrize("wrong", [threading.local(), "module:variable", None, ContextVar])
def test_contextvar_carrier_of_something_else(wrong):
    """What is no ContextVar is a TypeError that names the carriers that may fit."""
    with pytest.raises(TypeError, match="ThreadLocalCarrier"):
        ContextVarCarrier(wrong)


@pytest.mark.parametrize("value", [None, 0, "near", {}, MISSING])
def test_contextvar_carrier_round_trip(value):
    """The captured value is applied, and undo brings back what was there."""
    variable = ContextVar("variable", default="default")
    carrier = ContextVarCarrier(variable)
    if value is not MISSING:
        variable.set(value)
    state = carrier.capture()
    assert value is state
    variable.set("far")
    token = carrier.apply(state)
    assert ("default" if value is MISSING else value) == variable.get()
    carrier.undo(token)
    assert "far" == variable.get()


def test_contextvar_carrier_default_is_not_captured():
    """A variable that shows only its default is not set."""
    assert MISSING is ContextVarCarrier(ContextVar("variable", default=3)).capture()


def test_contextvar_carrier_undo_unsets():
    """Undo of a value applied over nothing leaves the variable unset."""
    variable = ContextVar("variable")
    carrier = ContextVarCarrier(variable)
    carrier.undo(carrier.apply("value"))
    with pytest.raises(LookupError):
        variable.get()
    assert variable not in copy_context()


def test_contextvar_carrier_cannot_unset_without_default():
    """In place, a variable without default cannot be unset: an error that says what can."""
    variable = ContextVar("variable")
    variable.set("far")
    with pytest.raises(CarrierError, match=r"snapshot\.run") as caught:
        ContextVarCarrier(variable, name="app.v").apply(MISSING)
    assert ("app.v", "apply") == (caught.value.carrier, caught.value.stage)
    assert "far" == variable.get()


def test_contextvar_carrier_undo_in_another_context():
    """Undo in a Context that did not see the apply is a LeakError."""
    carrier = ContextVarCarrier(ContextVar("variable"))
    token = carrier.apply("value")
    with pytest.raises(LeakError, match="variable"):
        Context().run(carrier.undo, token)
    carrier.undo(token)


def test_contextvar_carrier_alone_carries_only_its_variable():
    """Without `contextvars` one variable is carried and the others are left."""
    chosen, other = ContextVar("chosen"), ContextVar("other")
    registry = Registry()
    registry.register(ContextVarCarrier(chosen))
    chosen.set("near")
    other.set("near")
    snapshot = registry.capture()
    chosen.set("far")
    other.set("far")
    assert ("near", "far") == snapshot.run(lambda: (chosen.get(), other.get()))


def test_contextvar_carrier_alone_unsets():
    """Not set is a state: the variable is unset where the snapshot runs."""
    variable = ContextVar("variable")
    registry = Registry()
    registry.register(ContextVarCarrier(variable))
    snapshot = registry.capture()
    variable.set("far")
    with pytest.raises(LookupError):
        snapshot.run(variable.get)
    assert "far" == variable.get()


# ---------------------------------------------------------------- ThreadLocalCarrier


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


# ---------------------------------------------------------------- ValueCarrier


class Cell(threading.local):
    """One value of each thread behind a getter and a setter."""

    value = "unset"

    def get(self):
        return self.value

    def set(self, value):
        self.value = value


@pytest.mark.parametrize("value", [None, 0, "near", (), [1]])
def test_value_round_trip(value):
    """The captured value is set, and undo sets the former one."""
    cell = Cell()
    carrier = ValueCarrier("v", cell.get, cell.set)
    cell.set(value)
    state = carrier.capture()
    cell.set("far")
    token = carrier.apply(state)
    assert value is cell.get()
    carrier.undo(token)
    assert "far" == cell.get()


@pytest.mark.parametrize("wrong", [None, 3, "get"])
def test_value_needs_functions(wrong):
    """A getter or setter that cannot be called is a TypeError that says which."""
    with pytest.raises(TypeError, match="get must be callable"):
        ValueCarrier("v", wrong, print)
    with pytest.raises(TypeError, match="set must be callable"):
        ValueCarrier("v", print, wrong)


def test_value_equal_to_what_is_there_is_not_set():
    """A value that is already there is not set again, and nothing is undone."""
    calls = []
    carrier = ValueCarrier("v", lambda: 1, calls.append)
    assert UNCHANGED is carrier.apply(1)
    assert [] == calls


@pytest.mark.parametrize(
    ("near", "far"),
    [(True, 1), (1, True), (1.0, 1), (1, 1.0), ("1", b"1"), (-0.0, 0.0), (0.0, -0.0)],
)
def test_value_that_is_merely_equal_is_set(near, far):
    """What compares equal but is something else is not mistaken for the same."""
    cell = Cell()
    registry = Registry()
    registry.register(ValueCarrier("v", cell.get, cell.set))
    cell.set(near)
    snapshot = registry.capture()
    cell.set(far)
    assert repr(near) == repr(snapshot.run(cell.get))


def test_value_of_equal_containers():
    """Two lists with the same elements are two lists: the work gets the captured one."""
    cell = Cell()
    registry = Registry()
    registry.register(ValueCarrier("v", cell.get, cell.set))
    near, far = [1], [1]
    cell.set(near)
    snapshot = registry.capture()
    cell.set(far)
    assert near is snapshot.run(cell.get)
    assert far is cell.get()


def test_value_default_unsets():
    """With a default, MISSING and `clear` set the default."""
    cell = Cell()
    registry = Registry()
    carrier = registry.register(ValueCarrier("v", cell.get, cell.set, default="unset"))
    cell.set("far")
    carrier.undo(token := carrier.apply(MISSING))
    assert ("far", "far") == (token, cell.get())
    with ctxcarry.policy(clear="v"):
        snapshot = registry.capture()
    assert "unset" == snapshot.run(cell.get)
    assert "far" == cell.get()


def test_value_getter_may_say_missing():
    """A getter that returns MISSING needs a setter that gets the default."""
    cell = Cell()
    cell.set(MISSING)
    carrier = ValueCarrier("v", cell.get, cell.set, default=None)
    state = carrier.capture()
    cell.set("far")
    token = carrier.apply(state)
    assert cell.get() is None
    carrier.undo(token)
    assert "far" == cell.get()


def test_value_former_missing_is_restored_through_the_default():
    """Undo over a value that was not set hands the default to the setter."""
    cell = Cell()
    cell.set(MISSING)
    carrier = ValueCarrier("v", cell.get, cell.set, default=None)
    carrier.undo(carrier.apply("near"))
    assert cell.get() is None


def test_value_without_default_cannot_be_unset():
    """Unsetting a value that has no default is an error that says how to give one."""
    cell = Cell()
    registry = Registry()
    carrier = registry.register(ValueCarrier("app.v", cell.get, cell.set))
    with pytest.raises(CarrierError, match="default=") as caught:
        carrier.apply(MISSING)
    assert ("app.v", "apply") == (caught.value.carrier, caught.value.stage)
    with ctxcarry.policy(clear="app.v"):
        snapshot = registry.capture()
    ran = []
    with pytest.raises(CarrierError, match="default="):
        snapshot.run(ran.append, 1)
    assert [] == ran


def test_value_of_native_thread_state(in_thread):
    """State that lives in C for each thread is carried like any other (feature 7)."""
    registry = Registry()
    registry.register(ValueCarrier("errno", ctypes.get_errno, ctypes.set_errno, default=0))
    ctypes.set_errno(42)
    try:
        snapshot = registry.capture()
        seen = in_thread(
            lambda: (ctypes.get_errno(), snapshot.run(ctypes.get_errno), ctypes.get_errno())
        )
    finally:
        ctypes.set_errno(0)
    assert (0, 42, 0) == seen


# ---------------------------------------------------------------- contextvars-extras


@pytest.fixture
def extras():
    """Return a registry of contextvars-extras, and the function to get at its variables."""
    from contextvars_extras import ContextVarsRegistry

    class Current(ContextVarsRegistry):
        user: str
        step: int = 0

    return Current


def variable_of(registry, name):
    """Return the plain ContextVar behind an attribute of a registry."""
    return registry._registry_var_descriptors[name].context_var


def test_extras_names_itself(extras):
    """The carrier is named after the class, which may be given itself or as an instance."""
    assert "contextvars_extras:Current" == ContextVarsRegistryCarrier(extras()).name
    assert "contextvars_extras:Current" == ContextVarsRegistryCarrier(extras).name
    assert "mine" == ContextVarsRegistryCarrier(extras, name="mine").name


def test_extras_of_something_else():
    """What is no registry of that library is a TypeError."""
    from contextvars_extras import ContextVarsRegistry

    for wrong in (ContextVar("v"), ContextVarsRegistry, int, Registry()):
        with pytest.raises(TypeError, match="ContextVarsRegistry"):
            ContextVarsRegistryCarrier(wrong)


def test_extras_alone_is_carried_to_a_thread(extras, in_thread):
    """The variables of the registry, and no others, are carried under its name."""
    current, other = extras(), ContextVar("other", default="default")
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.user, current.step = "ada", 3
    other.set("near")
    snapshot = registry.capture()
    seen = in_thread(snapshot.run, lambda: (current.user, current.step, other.get()))
    assert ("ada", 3, "default") == seen


def test_extras_unset_comes_back_as_unset(extras):
    """Unset is unset for the plain ContextVar too, and not the library's sentinel."""
    current = extras()
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    snapshot = registry.capture()
    current.user, current.step = "far", 9
    user, step = variable_of(extras, "user"), variable_of(extras, "step")

    def look():
        with pytest.raises(LookupError):
            user.get()
        assert (user in copy_context(), step in copy_context()) == (False, False)
        return current.step

    assert 0 == snapshot.run(look)
    assert ("far", 9) == (current.user, current.step)


def test_extras_round_trip_in_place(extras):
    """Applied and undone in place, the variables are as captured and then as before."""
    current = extras()
    carrier = ContextVarsRegistryCarrier(current)
    assert MISSING is carrier.capture()
    current.user, current.step = "ada", 1
    state = carrier.capture()
    current.user, current.step = "far", 2
    token = carrier.apply(state)
    assert ("ada", 1) == (current.user, current.step)
    carrier.undo(token)
    assert ("far", 2) == (current.user, current.step)


def test_extras_cannot_unset_in_place(extras):
    """In place, a variable without default cannot be unset; nothing is changed then."""
    current = extras()
    carrier = ContextVarsRegistryCarrier(current)
    current.user, current.step = "far", 2
    with pytest.raises(CarrierError, match="user"):
        carrier.apply(MISSING)
    assert ("far", 2) == (current.user, current.step)


def test_extras_attribute_added_before_capture(extras):
    """An attribute that the registry gained after its carrier was made is carried."""
    current = extras()
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.tenant = "near"
    snapshot = registry.capture()
    current.tenant = "far"
    assert "near" == snapshot.run(lambda: current.tenant)


def test_extras_attribute_added_after_capture(extras):
    """An attribute that the registry gained after the capture was not set then, and is unset."""
    current = extras()
    registry = Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.user = "near"
    snapshot = registry.capture()
    current.tenant = "far"
    tenant = variable_of(extras, "tenant")

    def look():
        with pytest.raises(LookupError):
            tenant.get()
        return current.user

    assert "near" == snapshot.run(look)
    assert "far" == current.tenant


def test_extras_within_contextvars(extras, registry):
    """Beside `contextvars` the registry can be cleared or left out by its name."""
    current = extras()
    registry.register(ContextVarsRegistryCarrier(current))
    current.step = 1
    with ctxcarry.policy(clear="contextvars_extras:Current"):
        cleared = registry.capture()
    with ctxcarry.suppress("contextvars_extras:Current"):
        left = registry.capture()
    carried = registry.capture()
    current.step = 2
    assert [0, 2, 1] == [s.run(lambda: current.step) for s in (cleared, left, carried)]


def test_bound_arguments_arrive_once(extras):
    """Arguments of binding and of the call arrive as given, unlike in that library (trap 13)."""
    from functools import partial

    current = extras()
    ctxcarry.register(ContextVarsRegistryCarrier(current))
    try:
        current.step = 7

        def show(*args, **kwargs):
            return current.step, args, kwargs

        both, one = ctxcarry.bind(show), ctxcarry.bind(partial(show, 1))
        current.step = 8
        assert (7, (1, 2), {"k": 3}) == both(1, 2, k=3)
        assert (7, (1,), {}) == one()
        assert (7, (), {}) == both()
    finally:
        ctxcarry.unregister("contextvars_extras:Current")


# ---------------------------------------------------------------- all of them


def test_one_snapshot_spans_all_kinds(registry, local, in_thread):
    """ContextVars, a threading.local, and native state arrive together (feature 7)."""
    variable = ContextVar("variable", default="default")
    registry.register(ValueCarrier("errno", ctypes.get_errno, ctypes.set_errno, default=0))
    variable.set("near")
    local.stack = ["near"]
    ctypes.set_errno(7)
    try:
        snapshot = registry.capture()
    finally:
        ctypes.set_errno(0)

    def look():
        return variable.get(), getattr(local, "stack", None), ctypes.get_errno()

    def elsewhere():
        return look(), snapshot.run(look), look()

    nothing = ("default", None, 0)
    assert (nothing, ("near", ["near"], 7), nothing) == in_thread(elsewhere)


def test_no_contextvar_is_made_on_the_way(registry, local):
    """A ContextVar's value stays in its Context for ever, so none is created (trap 15)."""
    variable = ContextVar("variable")
    variable.set(1)
    local.value = 1

    def use():
        snapshot = registry.capture()
        snapshot.run(int)
        snapshot.wrap(int)()
        with snapshot.active(), ctxcarry.suppress("local"):
            registry.capture().run(int)
        with ctxcarry.executor(1, registry=registry) as pool:
            pool.submit(int).result(30)

    def count():
        gc.collect()
        return sum(type(thing) is ContextVar for thing in gc.get_objects())

    use()
    before = count()
    for _ in range(5):
        use()
    assert before == count()


@pytest.mark.parametrize(
    ("carrier", "state", "words"),
    [
        (ContextVarCarrier(ContextVar("v")), MISSING, "not set"),
        (ContextVarCarrier(ContextVar("v")), None, "None"),
        (ValueCarrier("v", int, print), "a  \n b" * 50, "…"),
        (ThreadLocalCarrier(threading.local(), name="l"), {"a": 1}, "{'a': 1}"),
    ],
)
def test_describe_is_one_short_line(carrier, state, words):
    """A description is one line of at most 80 characters, and "not set" is not None."""
    text = carrier.describe(state)
    assert words in text
    assert len(text) <= 80
    assert "\n" not in text
    assert carrier.name in repr(carrier)
