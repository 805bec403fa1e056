"""What a carried instance keeps alive, and until when."""

import gc
import weakref

import pytest
from carry_class_subjects import variable

from ctxcarry import carry_context


class Big:
    """Something that should not be kept."""


def test_base_goes_with_its_instance(default_local, in_thread, is_collected):
    """When an instance is collected, so is what its base held."""

    @carry_context
    class Worker:
        def __init__(self):
            bigs = Big(), Big()
            references.extend(map(weakref.ref, bigs))
            variable.set(bigs[0])
            default_local.value = bigs[1]

        def seen(self):
            return type(variable.get())

    references = []
    worker = in_thread(Worker)
    assert Big is worker.seen()
    assert [False, False] == [r() is None for r in references]
    references.append(weakref.ref(worker))
    del worker
    assert [True] * 3 == [is_collected(r) for r in references]


def test_many_instances_leave_nothing(in_thread):
    """Bases of instances that are gone are gone too, and numbers used again do no harm."""
    from ctxcarry import _decorate_class

    @carry_context
    class Worker:
        def __init__(self, value):
            variable.set(value)

        def seen(self):
            return variable.get()

    def make():
        return [Worker(n).seen() for n in range(200)]

    gc.collect()
    before = len(_decorate_class._bases)
    assert list(range(200)) == in_thread(make)
    gc.collect()
    assert before == len(_decorate_class._bases)


def test_exception_of_a_method_keeps_no_base(in_thread, is_collected):
    """An exception that is kept does not keep the base of an instance that is gone."""

    @carry_context
    class Worker:
        def __init__(self):
            big = Big()
            references.append(weakref.ref(big))
            variable.set(big)

        def fail(self):
            del self
            raise ValueError("mine")

    references = []

    def call():
        try:
            in_thread(Worker).fail()
        except ValueError as error:
            return error

    error = call()
    error.__traceback__ = error.__traceback__.tb_next  # this test's own frame
    assert is_collected(references[0])
    assert "mine" == str(error)


def test_init_that_fails(in_thread):
    """An ``__init__`` that raises raises that, and nothing is noted."""
    from ctxcarry import _decorate_class

    @carry_context
    class Worker:
        def __init__(self):
            raise ValueError("mine")

    before = len(_decorate_class._bases)
    with pytest.raises(ValueError, match="mine"):
        in_thread(Worker)
    assert before == len(_decorate_class._bases)
