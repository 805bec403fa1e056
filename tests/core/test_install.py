"""`install` and `uninstall`: zero-code instrumentation, removable in any order."""

import functools
import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context

import pytest
import wrapt

import ctxcarry
from ctxcarry import Registry, install, installed, suppress, uninstall

TIMEOUT = 30

variable = ContextVar("variable", default="default")


@pytest.fixture(autouse=True)
def uninstalled():
    """Start without any patch, also those for decorated functions, and end so."""
    uninstall()
    yield
    uninstall()


def look(*_):
    """Say what is set here."""
    return variable.get()


def submitted():
    """Return what a task of a plain pool sees when ``near`` is set here."""

    def near():
        variable.set("near")
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(look).result(TIMEOUT), next(pool.map(look, [0]))

    one, other = copy_context().run(near)
    assert one == other
    return one


@pytest.fixture
def put():
    """Return a function that replaces a method of ThreadPoolExecutor, taken back at the end."""
    before = {n: vars(ThreadPoolExecutor).get(n) for n in ("submit", "map")}

    def put(name, function):
        setattr(ThreadPoolExecutor, name, function)

    yield put
    uninstall()
    for name, function in before.items():
        if function is not None:
            setattr(ThreadPoolExecutor, name, function)
        elif name in vars(ThreadPoolExecutor):
            delattr(ThreadPoolExecutor, name)


def theirs(original, calls, *, linked):
    """Return somebody else's patch of `original`, with or without ``__wrapped__``."""

    def patched(self, /, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    return functools.wraps(original)(patched) if linked else patched


def test_nothing_is_installed_at_first():
    """Importing the package instruments nothing."""
    assert () == installed()
    assert "default" == submitted()


def test_install_and_uninstall():
    """Installed, any pool carries; uninstalled, none does."""
    install("executor")
    assert ("executor",) == installed()
    assert "near" == submitted()
    uninstall("executor")
    assert () == installed()
    assert "default" == submitted()


def test_all_boundaries():
    """Without names all boundaries are meant."""
    install()
    assert "executor" in installed()
    assert tuple is type(installed())
    assert "near" == submitted()
    uninstall()
    assert () == installed()
    assert "default" == submitted()


def test_methods_are_the_originals_again():
    """After `uninstall` the class has its own methods, and those that it inherits."""
    before = dict(vars(ThreadPoolExecutor))
    install("executor")
    assert before["submit"] is not ThreadPoolExecutor.submit
    uninstall("executor")
    assert before == dict(vars(ThreadPoolExecutor))


def test_idempotent():
    """Twice installed is installed, and once uninstalled is uninstalled (feature 12)."""
    original = vars(ThreadPoolExecutor)["submit"]
    install("executor")
    once = vars(ThreadPoolExecutor)["submit"]
    install("executor")
    install()
    assert once is vars(ThreadPoolExecutor)["submit"]
    assert original is once.__wrapped__
    uninstall("executor")
    assert original is vars(ThreadPoolExecutor)["submit"]
    uninstall("executor")
    assert original is vars(ThreadPoolExecutor)["submit"]


@pytest.mark.parametrize("function", [install, uninstall])
def test_unknown_boundary(function):
    """An unknown name is a ValueError with a suggestion, and changes nothing."""
    with pytest.raises(ValueError, match=r"Did you mean 'executor'\? Available: .*executor"):
        function("executor", "exekutor")
    assert () == installed()
    assert "default" == submitted()


@pytest.mark.parametrize("function", [install, uninstall])
def test_internal_name_is_unknown(function):
    """What is not listed as available is not accepted."""
    with pytest.raises(ValueError, match="Available"):
        function("carry_context")


def test_looks_of_the_methods():
    """Name, documentation and signature of the instrumented methods stay."""
    before = [(inspect.signature(m), m.__doc__, m.__qualname__) for m in methods()]
    install("executor")
    assert before == [(inspect.signature(m), m.__doc__, m.__qualname__) for m in methods()]


def methods():
    """Return the methods that are instrumented."""
    return ThreadPoolExecutor.submit, ThreadPoolExecutor.map


def test_keyword_arguments_may_have_any_name():
    """No keyword argument of a task collides with one of ours (trap 12)."""
    install("executor")
    variable.set("near")
    arguments = {name: name.upper() for name in ("fn", "func", "self", "args", "snapshot")}
    with ThreadPoolExecutor(1) as pool:
        assert arguments == pool.submit(lambda **k: k, **arguments).result(TIMEOUT)
        with pytest.raises(TypeError):
            pool.submit()


def test_pools_made_before(default_local):
    """Pools that exist already carry too, with all that the default registry has."""
    with ThreadPoolExecutor(1) as pool:
        install("executor")
        default_local.value = "near"
        assert "near" == pool.submit(lambda: default_local.value).result(TIMEOUT)


def test_subclasses():
    """A subclass carries when its own method calls that of its base."""

    class Named(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(fn, *args, **kwargs)

    install("executor")
    variable.set("near")
    with Named(1) as pool:
        assert "near" == pool.submit(look).result(TIMEOUT)
        assert "near" == next(pool.map(look, [0]))


def test_policies():
    """`suppress` holds for instrumented pools."""
    install("executor")
    variable.set("near")
    with ThreadPoolExecutor(1) as pool, suppress():
        assert "default" == pool.submit(look).result(TIMEOUT)
        assert "default" == next(pool.map(look, [0]))


def test_map_captures_at_the_call():
    """An instrumented `map` carries the context of its call."""
    install("executor")
    variable.set("near")
    with ThreadPoolExecutor(1) as pool:
        results = pool.map(look, (n for n in range(3)))
        variable.set("later")
        assert ["near"] * 3 == list(results)


def test_one_capture_for_each_hand_over():
    """Neither a patch over a patch nor `map` over `submit` captures twice."""
    calls = []

    class Counting:
        name = "test.counting"

        def capture(self):
            if threading.current_thread() is threading.main_thread():
                calls.append(1)
            return ctxcarry.MISSING

        def apply(self, state):
            pass

        def undo(self, token):
            pass

    ctxcarry.register(Counting())
    install("executor")
    try:
        with ThreadPoolExecutor(1) as plain, ctxcarry.executor(1) as ours:
            wrapped = ctxcarry.wrap_executor(plain)
            for pool in (plain, ours, wrapped):
                calls.clear()
                pool.submit(int).result(TIMEOUT)
                assert [1] == calls
                calls.clear()
                assert [0, 1] == list(pool.map(int, range(2)))
                assert [1] == calls
    finally:
        ctxcarry.unregister("test.counting")


def test_executor_with_its_own_registry(registry, local, default_local):
    """An instrumented plain pool beneath it does not change what a carrying pool carries."""
    install("executor")
    variable.set("near")
    local.value = default_local.value = "near"

    def seen(*_):
        return look(), getattr(local, "value", None), getattr(default_local, "value", None)

    cases = {
        "own": ({"registry": registry}, ("near", "near", None)),
        "empty": ({"registry": Registry()}, ("default", None, None)),
        "nothing": ({"policy": suppress()}, ("default", None, None)),
    }
    for name, (options, expected) in cases.items():
        with ctxcarry.executor(1, **options) as pool:
            assert (name, expected) == (name, pool.submit(seen).result(TIMEOUT))
            assert (name, expected) == (name, next(pool.map(seen, [0])))


@pytest.mark.parametrize("linked", [True, False], ids=["wraps", "plain"])
@pytest.mark.parametrize("name", ["submit", "map"])
def test_patch_of_others_on_top(name, linked, put):
    """Under another patch, uninstalling makes ours inert and leaves theirs (trap 11)."""
    calls = []
    install("executor")
    on_top = theirs(getattr(ThreadPoolExecutor, name), calls, linked=linked)
    put(name, on_top)
    assert "near" == submitted()
    assert calls
    uninstall("executor")
    assert on_top is vars(ThreadPoolExecutor)[name]
    calls.clear()
    assert "default" == submitted()
    assert calls


@pytest.mark.parametrize("linked", [True, False], ids=["wraps", "plain"])
@pytest.mark.parametrize("name", ["submit", "map"])
def test_installed_again_under_a_patch_of_others(name, linked, put):
    """Installed again, ours carries again, once; and it can be uninstalled again."""
    calls = []
    install("executor")
    beneath = getattr(ThreadPoolExecutor, name)
    put(name, theirs(beneath, calls, linked=linked))
    uninstall("executor")
    for _ in range(2):
        install("executor")
        assert ("executor",) == installed()
        assert "near" == submitted()
        uninstall("executor")
        assert "default" == submitted()
    assert calls


def test_patch_of_others_on_top_is_taken_off_later(put):
    """When theirs goes after ours was uninstalled, what it puts back passes calls through."""
    original = vars(ThreadPoolExecutor)["submit"]
    install("executor")
    ours = vars(ThreadPoolExecutor)["submit"]
    put("submit", theirs(ours, [], linked=True))
    uninstall("executor")
    put("submit", ours)  # as their uninstall does
    assert "default" == submitted()
    install("executor")
    assert "near" == submitted()
    uninstall("executor")
    assert "default" == submitted()
    assert original is vars(ThreadPoolExecutor)["submit"]


@pytest.mark.parametrize("linked", [True, False], ids=["wraps", "plain"])
def test_patch_of_others_beneath(linked, put):
    """Over another patch, ours comes off and theirs is what is left."""
    calls = []
    beneath = theirs(vars(ThreadPoolExecutor)["submit"], calls, linked=linked)
    put("submit", beneath)
    install("executor")
    assert "near" == submitted()
    assert calls
    uninstall("executor")
    assert beneath is vars(ThreadPoolExecutor)["submit"]


def test_patch_of_others_beneath_is_taken_off_first(put):
    """When theirs goes and takes ours along, installing again brings ours back."""
    original = vars(ThreadPoolExecutor)["submit"]
    put("submit", theirs(original, [], linked=True))
    install("executor")
    put("submit", original)  # as their uninstall does
    install("executor")
    assert "near" == submitted()
    uninstall("executor")
    assert original is vars(ThreadPoolExecutor)["submit"]


def test_patch_made_with_wrapt_on_top(put):
    """A patch made with wrapt, as instrumentations do, is recognised as being on top."""
    install("executor")
    calls = []

    def wrapper(wrapped, instance, args, kwargs):
        calls.append(1)
        return wrapped(*args, **kwargs)

    put("submit", wrapt.FunctionWrapper(vars(ThreadPoolExecutor)["submit"], wrapper))
    on_top = vars(ThreadPoolExecutor)["submit"]
    uninstall("executor")
    assert on_top is vars(ThreadPoolExecutor)["submit"]
    assert "default" == submitted()
    install("executor")
    assert "near" == submitted()
    assert on_top is vars(ThreadPoolExecutor)["submit"]


def test_subclass_patch_is_left_alone():
    """Uninstalling does not touch methods that a subclass has of its own."""

    class Own(ThreadPoolExecutor):
        def map(self, fn, *iterables, **kwargs):
            return super().map(fn, *iterables, **kwargs)

    before = Own.map
    install("executor")
    uninstall("executor")
    assert before is Own.map
    assert "map" not in vars(ThreadPoolExecutor)


def test_tasks_queued_before_uninstall(occupied):
    """What was submitted while installed is carried, though it runs later."""
    install("executor")
    variable.set("near")
    with ThreadPoolExecutor(1) as pool:
        with occupied(pool):
            future = pool.submit(look)
            uninstall("executor")
        assert "near" == future.result(TIMEOUT)


def test_from_several_threads():
    """Installing and uninstalling at once from several threads ends as the last one says."""
    original = vars(ThreadPoolExecutor)["submit"]
    together = threading.Barrier(4)

    def toggle():
        together.wait(TIMEOUT)
        for _ in range(100):
            install("executor")
            uninstall("executor")

    threads = [threading.Thread(target=toggle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert original is vars(ThreadPoolExecutor)["submit"]
    assert () == installed()


def test_decorated_functions_keep_their_patches():
    """`uninstall("executor")` leaves what `carry_context` needs, `uninstall()` does not."""

    @ctxcarry.carry_context
    def decorated():
        return variable.get()

    variable.set("near")
    install("executor")
    uninstall("executor")
    with ThreadPoolExecutor(1) as pool:
        assert ("near", "default") == (
            pool.submit(decorated).result(TIMEOUT),
            pool.submit(look).result(TIMEOUT),
        )
        uninstall()
        assert "default" == pool.submit(decorated).result(TIMEOUT)


@pytest.mark.parametrize(
    "module", ["concurrent.futures.process", "multiprocessing.pool", "asyncio", "threading"]
)
def test_modules_imported_later(module):
    """Modules of the standard library are imported after a decoration or `install` as before it."""
    code = (
        "import ctxcarry\n"
        "ctxcarry.carry_context(print)\n"
        "ctxcarry.install()\n"
        f"import {module}\n"
        "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(1) as pool: print(pool.submit(int).result(30))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ("0\n", "", 0) == (done.stdout, done.stderr, done.returncode)


def test_interpreter_ends_while_installed():
    """A program that leaves everything installed ends in peace."""
    code = (
        "import ctxcarry, contextvars\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ctxcarry.install()\n"
        "v = contextvars.ContextVar('v'); v.set(1)\n"
        "pool = ThreadPoolExecutor(2)\n"
        "print(pool.submit(v.get).result(30))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ("1\n", "", 0) == (done.stdout, done.stderr, done.returncode)
