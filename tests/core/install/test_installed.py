"""What is installed and uninstalled, and when."""

import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from install_subjects import TIMEOUT, look, submitted, variable

import ctxcarry
from ctxcarry import install, installed, uninstall


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
