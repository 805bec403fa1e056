"""Zero-code instrumentation: install("process") for pools and processes that are plain."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import work

import ctxcarry

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def pool(method):
    """Give a multiprocessing.Pool of one process, made before anything is installed."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        pool.apply(int)
        yield pool


@pytest.fixture
def installed():
    """Install the boundary for a test."""
    ctxcarry.install("process")
    yield
    ctxcarry.uninstall("process")


@pytest.fixture
def started(method):
    """Return a function that starts a process with a queue and returns what that put into it."""
    context = multiprocessing.get_context(method)

    def start(make):
        queue = context.Queue()
        process = make(context, queue)
        process.start()
        found = queue.get(timeout=60)
        process.join()
        assert 0 == process.exitcode
        return found

    return start


def test_process_pool_executor(plain, something_set, installed):
    """Submit and map of a plain ProcessPoolExecutor carry, and are plain after uninstall."""
    with something_set():
        sent, mapped = plain.submit(work.probe), plain.map(work.probe, range(3), chunksize=2)
        ctxcarry.uninstall("process")
        after = plain.submit(work.probe)
    assert (work.SET, [work.SET] * 3) == (sent.result(), list(mapped))
    assert work.UNSET == after.result()


def test_exceptions(plain, installed):
    """An exception of a task is the one of a plain pool."""
    error = plain.submit(work.fail, 7).exception()
    assert (work.OwnError, 7) == (type(error), error.code)


WAYS = {
    "apply": lambda pool: pool.apply(work.probe),
    "apply_async": lambda pool: pool.apply_async(work.probe).get(),
    "map": lambda pool: pool.map(work.probe, [1, 2], chunksize=2)[1],
    "map_async": lambda pool: pool.map_async(work.probe, [1, 2]).get()[1],
    "imap": lambda pool: next(pool.imap(work.probe, [1])),
    "imap in chunks": lambda pool: list(pool.imap(work.probe, range(3), chunksize=2))[2],
    "imap_unordered": lambda pool: next(pool.imap_unordered(work.probe, [1])),
    "starmap": lambda pool: pool.starmap(work.probe, [(1, 2)])[0],
    "starmap_async": lambda pool: pool.starmap_async(work.probe, [(1, 2)]).get()[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_multiprocessing_pool(pool, something_set, installed, way):
    """Every way to hand work to a multiprocessing.Pool carries, and is plain after uninstall."""
    with something_set():
        inside = WAYS[way](pool)
        outside = pool.apply_async(work.probe)
        ctxcarry.uninstall("process")
        after = WAYS[way](pool)
    assert (work.SET, work.SET, work.UNSET) == (inside, outside.get(), after)


def test_pool_exceptions_and_callbacks(pool, installed):
    """Errors of a Pool's tasks come back as they were raised, to get and to the callback."""
    work.VARIABLE.set("there")
    told = []
    result = pool.apply_async(work.fail, (7,), error_callback=told.append)
    with pytest.raises(work.OwnError) as caught:
        result.get()
    assert ((7, "there"), [(7, "there")]) == (caught.value.args, [error.args for error in told])


def test_process_with_a_target(started, something_set, installed):
    """The target of a Process runs in the context of its start."""

    def make(context, queue):
        return context.Process(target=work.put, args=(queue,))

    with something_set():
        assert work.SET == started(make)


@pytest.fixture
def by_default(method, monkeypatch):
    """Make this way to start processes the one of `multiprocessing.Process` itself."""
    default = multiprocessing.context._default_context
    monkeypatch.setattr(default, "_actual_context", multiprocessing.get_context(method))


def test_process_with_a_run_of_its_own(by_default, something_set, installed):
    """A subclass with its own run carries it, whichever way the default is to start processes."""
    queue = multiprocessing.Queue()
    process = work.OwnRun(queue)
    with something_set():
        process.start()
    found, is_own = queue.get(timeout=60)
    process.join()
    assert (work.SET, True, 0) == (found, is_own, process.exitcode)
    assert "run" not in vars(process)


def test_own_run_around_a_target(by_default, something_set, installed):
    """What a subclass's own run does before it calls the target is carried as well."""
    queue = multiprocessing.Queue()
    process = work.OwnRunAndTarget(queue, target=work.put, args=(queue,))
    with something_set():
        process.start()
    found = queue.get(timeout=60), queue.get(timeout=60)
    process.join()
    assert ("there", work.SET) == found


def test_a_failed_start_leaves_the_process_as_it_was(installed):
    """A process whose start fails is as before, and starts in the context of the next start."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work.put, args=(lambda: None,))
    target = process._target
    with pytest.raises(Exception, match="pickle"):
        process.start()
    assert target is process._target


def test_decorated_pool_work(pool, something_set):
    """A function under carry_context carries through a plain Pool, others do not."""
    import work_decorated

    ctxcarry.carry_context(lambda: None)  # puts the patches on again, after another test
    with something_set():
        found = pool.apply(work_decorated.probe), pool.apply(work.probe)
    assert (work.SET, work.UNSET) == found


def test_uninstall_leaves_no_patch():
    """Everything that install patched is what it was, in whatever order it is taken off."""
    before = ProcessPoolExecutor.submit, multiprocessing.pool.Pool.map
    ctxcarry.install("process", "executor", "thread_pool")
    assert [] != work.patches()
    ctxcarry.uninstall("executor")
    ctxcarry.uninstall("process")
    ctxcarry.uninstall("thread_pool")
    assert ([], before) == (
        work.patches(),
        (ProcessPoolExecutor.submit, multiprocessing.pool.Pool.map),
    )
