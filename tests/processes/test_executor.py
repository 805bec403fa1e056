"""Pools of processes that carry: executor(kind="process") and wrap_executor."""

import multiprocessing
import pickle
import warnings
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
import torch
import work

import ctxcarry
from ctxcarry import NotPortableError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_submit(carrying, something_set):
    """A task runs in the context of its submit, and the next one in that of its own."""
    with something_set():
        inside = carrying.submit(work.probe)
    outside = carrying.submit(work.probe)
    assert (work.SET, work.UNSET) == (inside.result(), outside.result())


def test_arguments(carrying):
    """Positional and keyword arguments of any name arrive as given."""
    work.VARIABLE.set("there")
    sent = carrying.submit(work.keyed, 1, self=2, fn=3, payload=4)
    assert ((1,), {"self": 2, "fn": 3, "payload": 4}, "there") == sent.result()


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map(carrying, chunksize):
    """All of a map runs in the context of the call of map, whatever the size of its chunks."""
    work.VARIABLE.set("there")
    results = carrying.map(work.keyed, range(5), range(5), chunksize=chunksize)
    work.VARIABLE.set("later")
    assert [((i, i), {}, "there") for i in range(5)] == list(results)


def test_exceptions(carrying):
    """An exception comes back with its type, arguments and attributes, as from a plain pool."""
    work.VARIABLE.set("there")
    error = carrying.submit(work.fail, 7).exception()
    assert (work.OwnError, (7, "there"), 7) == (type(error), error.args, error.code)
    assert "there" == carrying.submit(work.variable).result()


def test_allocator(carrying):
    """A Triton allocator arrives by its import path."""
    triton = pytest.importorskip("triton")
    triton.set_allocator(work.allocate)
    assert "allocate" == carrying.submit(work.probe_allocator).result()


def test_lambda_allocator(carrying):
    """An allocator without an import path is told at submit, and the task runs without it."""
    triton = pytest.importorskip("triton")
    triton.set_allocator(lambda size, alignment, stream: None)
    with pytest.warns(ctxcarry.errors.CtxCarryWarning, match="top of a module"):
        future = carrying.submit(work.probe_allocator)
    assert future.result() is None


def test_policies(carrying, something_set):
    """Suppressed contexts do not arrive."""
    with something_set(), ctxcarry.suppress("torch.grad_mode"):
        part = carrying.submit(work.probe)
        with ctxcarry.suppress():
            nothing = carrying.submit(work.probe)
    assert ("there", True, ("cpu", True)) == part.result()
    assert work.UNSET == nothing.result()


def test_bound(carrying, something_set):
    """A bound function keeps the context that it was bound to."""
    with something_set():
        bound = ctxcarry.bind(work.probe)
    work.VARIABLE.set("of the submit")
    assert work.SET == carrying.submit(bound).result()


def test_decorated(carrying, plain, something_set):
    """Functions under carry_context carry through plain pools too, within their own policy."""
    import work_decorated

    ctxcarry.carry_context(lambda: None)  # puts the patches on again, after another test
    try:
        with something_set():
            sent = [pool.submit(work_decorated.probe) for pool in (carrying, plain)]
            partly = [pool.submit(work_decorated.without_grad_mode) for pool in (carrying, plain)]
            undecorated = plain.submit(work.probe)
    finally:
        ctxcarry.uninstall()
    assert [work.SET] * 2 == [future.result() for future in sent]
    assert [("there", True, ("cpu", True))] * 2 == [future.result() for future in partly]
    assert work.UNSET == undecorated.result()


def test_wrapped(plain, something_set):
    """A pool that exists already carries where it is wrapped, and nowhere else."""
    pool = ctxcarry.wrap_executor(plain)
    with something_set():
        sent, mapped, uncarried = (
            pool.submit(work.probe),
            pool.map(work.probe, range(3), chunksize=2),
            plain.submit(work.probe),
        )
    after = pool.submit(work.probe)
    assert (work.SET, [work.SET] * 3, work.UNSET) == (sent.result(), [*mapped], uncarried.result())
    assert work.UNSET == after.result()


def test_nothing_kept(carrying):
    """A task of nobody's context leaves a worker as it was when another's has run there."""
    work.VARIABLE.set("there")
    first = carrying.submit(work.variable).result()
    assert ("there", "unset") == (
        first,
        ProcessPoolExecutor.submit(carrying, work.variable).result(),
    )


def test_initializer_is_the_base(something_set):
    """What the initializer set is there where the submitter had nothing set, and yields else."""
    context = multiprocessing.get_context("fork")
    pool = ctxcarry.executor(
        1, kind="process", mp_context=context, initializer=work.initialize, initargs=("base",)
    )
    with pool:
        work.VARIABLE.set("there")
        first = pool.submit(work.both).result()
        work.OTHER.set("mine")
        assert [("there", "base"), ("there", "mine")] == [first, pool.submit(work.both).result()]


def test_a_fork_keeps_nothing(something_set):
    """What was set when the pool forked its workers is not there for those who submit later."""
    context = multiprocessing.get_context("fork")
    with ctxcarry.executor(1, kind="process", mp_context=context) as pool:
        with something_set():
            inside = pool.submit(work.probe).result()
        assert (work.SET, work.UNSET) == (inside, pool.submit(work.probe).result())


def test_not_portable_reaches_submit():
    """With not_portable="raise" submit and map raise, and with "skip" nothing is said."""
    modes = torch.overrides.BaseTorchFunctionMode
    with ctxcarry.executor(1, kind="process", not_portable="raise") as pool, modes():
        with pytest.raises(NotPortableError, match=r"torch\.function_modes"):
            pool.submit(work.variable)
        with pytest.raises(NotPortableError, match=r"torch\.function_modes"):
            pool.map(work.variable, range(2))
    skipping = ctxcarry.executor(1, kind="process", not_portable="skip")
    with skipping as pool, modes(), warnings.catch_warnings():
        warnings.simplefilter("error", ctxcarry.errors.CtxCarryWarning)
        assert "unset" == pool.submit(work.variable).result()


@pytest.mark.parametrize(
    "options", [{"not_portable": "rise"}, {"check_leaks": True}, {"merge_back": True}]
)
def test_options(options):
    """Options that are wrong for processes are refused."""
    with pytest.raises(ValueError, match=next(iter(options))):
        ctxcarry.executor(1, kind="process", **options)


def test_is_a_pool(carrying):
    """The pool is a ProcessPoolExecutor and gives plain futures."""
    future = carrying.submit(int)
    assert (True, Future, 0) == (
        isinstance(carrying, ProcessPoolExecutor),
        type(future),
        future.result(),
    )


def test_own_registry():
    """A registry of one's own chooses what is carried."""
    registry = ctxcarry.Registry()
    registry.register(next(c for c in ctxcarry.carriers() if c.name == "torch.grad_mode"))
    context = multiprocessing.get_context("fork")
    with ctxcarry.executor(1, kind="process", mp_context=context, registry=registry) as pool:
        pool.submit(int).result()
        work.VARIABLE.set("there")
        with torch.no_grad():
            assert ("unset", False, ("cpu", False)) == pool.submit(work.probe).result()


def test_a_context_variable_imported_into_main():
    """A variable that __main__ has imported is addressed by the module that others can import."""
    import __main__

    context = multiprocessing.get_context("spawn")
    __main__.imported_variable = work.IMPORTED
    try:
        work.IMPORTED.set("there")
        with ctxcarry.executor(1, kind="process", mp_context=context) as pool:
            assert "there" == pool.submit(work.imported).result()
    finally:
        del __main__.imported_variable


def test_shipped_work_pickles_again():
    """A bound function that is pickled twice carries what it carried."""
    token = work.VARIABLE.set("there")
    once = pickle.loads(pickle.dumps(ctxcarry.bind(work.variable)))  # noqa: S301 - our own
    work.VARIABLE.reset(token)
    assert "there" == pickle.loads(pickle.dumps(once))()  # noqa: S301 - our own
