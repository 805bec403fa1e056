"""What all tests share: a Context for each test, and a look at whether an object is gone."""

import gc
from contextvars import copy_context

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Call each test in a Context of its own, so that what it sets goes with it."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    copy_context().run(pyfuncitem.obj, **arguments)
    return True


@pytest.fixture
def is_collected():
    """Return a function that says whether the object of a weak reference is gone."""

    def check(reference):
        for _ in range(3):
            if reference() is None:
                return True
            gc.collect()
        return reference() is None

    return check
