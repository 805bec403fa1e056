"""Many tasks at once: nobody sees another's context, nothing is left."""

import gc
import random
import threading
import weakref
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import Context

from stress_subjects import TIMEOUT, World

import ctxcarry
from ctxcarry import Snapshot, suppress

TASKS = 100_000
BATCH = 250
THREADS = 4


class Identity:
    """Whose context this is."""

    def __init__(self, number):
        self.number = number


class Rejected(Exception):
    """What tasks raise on purpose."""


class Stress:
    """Tasks that nest at random, and check at each turn whose context they are in."""

    def __init__(self, world, snapshots, second):
        self.world = world
        self.snapshots = snapshots
        self.second = second

    def messy_task(self, identity, seed, depth=2):
        """Run a task, and leave a mess: it is the pool's to clean up."""
        result = self.task(identity, seed, depth)
        if seed % 10 == 1:
            self.world.become(Identity("mess"))
        return result

    def task(self, identity, seed, depth):
        self.world.check(identity)
        what = seed % 10
        if what == 0:
            raise Rejected
        if depth:
            self.nest(what, identity, seed // 10, depth - 1)
            self.world.check(identity)
        return seed

    def nest(self, what, identity, seed, depth):
        owner, snapshot = self.snapshots[seed % len(self.snapshots)]
        if what == 2:
            assert seed == self.settle(snapshot.run, self.task, owner, seed, depth, default=seed)
        elif what == 3:
            with snapshot.active():
                self.world.check(owner)
                self.settle(self.task, owner, seed, 0)
        elif what == 4 and depth:
            # Work of the second pool never waits for that pool, so this cannot lock up.
            future = self.second.submit(self.messy_task, identity, seed, 0)
            self.settle(future.result, TIMEOUT)
        elif what == 5:
            with suppress("local", "contextvars"), snapshot.active():
                self.world.registry.capture()
                self.world.check(owner)
        elif what == 6:
            assert list(snapshot.run(self.steps, owner)) == [owner, owner]

    def steps(self, owner):
        for _ in range(2):
            self.world.check(owner)
            yield owner

    def settle(self, fn, /, *args, default=None):
        try:
            return fn(*args)
        except Rejected:
            return default


def submit_batches(number, stress, pool, references, counted):
    """Submit a share of the tasks, each batch from a context of its own, and cancel some."""
    draw = random.Random(number)  # noqa: S311 - a repeatable one
    for batch in range(TASKS // 2 // BATCH):
        identity = Identity((number, batch))
        references.append(weakref.ref(identity))
        stress.world.become(identity)
        seeds = [draw.randrange(10**6) for _ in range(BATCH)]
        futures = [pool.submit(stress.messy_task, identity, seed) for seed in seeds]
        for future in draw.sample(futures, BATCH // 10):
            future.cancel()
        for seed, future in zip(seeds, futures):
            try:
                assert seed == future.result(TIMEOUT)
                counted["done"] += 1
            except Rejected:
                counted["rejected"] += 1
            except CancelledError:
                counted["cancelled"] += 1
        stress.world.check(identity)


def test_many_tasks_of_many_submitters(contextvars_carrier, is_collected):
    """100,000 nested, failing and cancelled tasks of interleaved submitters see their own only."""
    world = World(contextvars_carrier)
    gc.collect()
    snapshots_before = count_snapshots()
    references, counts = [], [Counter(), Counter()]

    def run():
        snapshots = []
        for number in range(2):
            identity = Identity(number)
            references.append(weakref.ref(identity))
            world.become(identity)
            snapshots.append((identity, world.registry.capture()))
        world.clear()
        with (
            ctxcarry.executor(THREADS, registry=world.registry) as first,
            ctxcarry.executor(THREADS, registry=world.registry) as second,
        ):
            stress = Stress(world, snapshots, second)
            arguments = [(n, stress, first, references, counts[n]) for n in range(2)]
            assert [] == in_threads(submit_batches, arguments)
            for pool in (first, second):
                assert [None] * THREADS == on_every_worker(pool, lambda: world.check(None))

    Context().run(run)
    outcomes = counts[0] + counts[1]
    assert TASKS == sum(outcomes.values())
    assert {"done", "rejected", "cancelled"} == set(outcomes)
    assert [] == [r() for r in references if not is_collected(r)]
    gc.collect()
    assert snapshots_before == count_snapshots()


def count_snapshots():
    """Return how many snapshots there are in this process."""
    return sum(type(thing) is Snapshot for thing in gc.get_objects())


def in_threads(fn, arguments):
    """Run `fn` in a thread for each of `arguments`; return what was raised."""
    failures = []

    def body(*args):
        try:
            fn(*args)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=args) for args in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * TIMEOUT)
    return failures


def on_every_worker(pool, fn):
    """Run `fn` once on each thread of a pool, as a plain pool does."""
    together = threading.Barrier(THREADS)

    def body():
        together.wait(TIMEOUT)
        return fn()

    futures = [ThreadPoolExecutor.submit(pool, body) for _ in range(THREADS)]
    return [future.result(TIMEOUT) for future in futures]


def test_two_snapshots_on_one_pool(contextvars_carrier):
    """Two snapshots interleaved on one pool of threads, through `run` and `wrap`, never mix."""
    world = World(contextvars_carrier)
    identities = [Identity(n) for n in range(2)]
    bound = []
    for identity in identities:
        world.become(identity)
        snapshot = world.registry.capture()

        def check(identity=identity):
            world.check(identity)
            world.become(Identity("mess"))
            return identity

        bound.append((snapshot, check, snapshot.wrap(check)))
    world.clear()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = []
        for n in range(4000):
            snapshot, check, wrapped = bound[n % 2]
            futures.append(pool.submit(snapshot.run, check) if n % 3 else pool.submit(wrapped))
        found = [future.result(TIMEOUT) for future in futures]
        assert [identities[n % 2] for n in range(4000)] == found
        assert [None] * THREADS == on_every_worker(pool, lambda: world.check(None))
