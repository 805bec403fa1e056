"""Many tasks at once and every way to nest: nobody sees another's context, nothing is left."""

import gc
import random
import threading
import weakref
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctxcarry
from ctxcarry import (
    MISSING,
    ContextVarCarrier,
    Registry,
    Snapshot,
    ThreadLocalCarrier,
    ValueCarrier,
    policy,
    suppress,
)

TIMEOUT = 120
TASKS = 100_000
BATCH = 250
THREADS = 4

variable = ContextVar("variable", default=None)
named = ContextVar("named", default=None)


class Identity:
    """Whose context this is."""

    def __init__(self, number):
        self.number = number


class Cell(threading.local):
    """One value of each thread behind a getter and a setter."""

    now = None


class World:
    """Contexts of each kind, which all hold one identity at a time."""

    def __init__(self, contextvars_carrier):
        self.local, self.cell = threading.local(), Cell()
        self.registry = Registry()
        self.registry.register(contextvars_carrier)
        self.registry.register(ThreadLocalCarrier(self.local, name="local"))
        self.registry.register(
            ValueCarrier(
                "cell",
                lambda: self.cell.now,
                lambda value: setattr(self.cell, "now", value),
                default=None,
            )
        )
        self.registry.register(ContextVarCarrier(named))

    def become(self, identity):
        variable.set(identity)
        named.set(identity)
        self.local.value, self.local.stack = identity, [identity]
        self.cell.now = identity

    def check(self, identity):
        """Fail unless everything here is that of `identity`."""
        assert identity is variable.get()
        assert identity is named.get()
        assert identity is getattr(self.local, "value", None)
        assert ([identity] if identity else None) == getattr(self.local, "stack", None)
        assert identity is self.cell.now

    def clear(self):
        self.local.__dict__.clear()
        self.cell.now = None


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


# ---------------------------------------------------------------- a model of nesting

NAMES = ("contextvars", "named", "local", "cell")
VALUES = (None, 1, 2, 3)

names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
leaf = st.one_of(
    st.just(("capture",)),
    st.just(("check",)),
)


def scopes(body):
    """Return programs of one scope around a body."""
    bodies = st.lists(body, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.just("set"), st.sampled_from(NAMES), st.sampled_from(VALUES), bodies),
        st.tuples(st.just("run"), st.integers(0, 9), bodies),
        st.tuples(st.just("thread"), st.integers(0, 9), bodies),
        st.tuples(st.just("active"), st.integers(0, 9), bodies),
        st.tuples(st.just("suppress"), names, bodies),
        st.tuples(st.just("clear"), names, bodies),
        st.tuples(st.just("clear but"), st.sampled_from(NAMES), bodies),
    )


programs = st.lists(st.recursive(leaf, scopes, max_leaves=12), min_size=1, max_size=8)


class Model:
    """
    What the documentation says, in a few lines.

    A state is a dict: the value of each context, None when it is not set. A
    policy is a dict of actions, which the ContextVars carry as they do any
    other variable.
    """

    def __init__(self):
        self.state = dict.fromkeys(NAMES)
        self.policy = {}
        self.captured = []

    def action(self, name, rules):
        return rules.get(name, rules.get("*", "propagate"))

    def capture(self):
        rules = self.policy
        actions = {name: self.action(name, rules) for name in NAMES}
        self.captured.append((actions, dict(self.state), rules))

    def under(self, index):
        """Return state and policy under a snapshot."""
        actions, captured, rules = self.captured[index]
        pick = {"propagate": captured, "unchanged": self.state, "clear": dict.fromkeys(NAMES)}
        state = {name: pick[actions[name]][name] for name in NAMES}
        return state, {"propagate": rules, "unchanged": self.policy, "clear": {}}[
            actions["contextvars"]
        ]

    def within(self, inner):
        return inner if "*" in inner else {**self.policy, **inner}


class Machine:
    """Runs a program against ctxcarry and against the model."""

    def __init__(self, contextvars_carrier):
        self.world = World(contextvars_carrier)
        self.model = Model()
        self.snapshots = []

    def check(self):
        found = {
            "contextvars": variable.get(),
            "named": named.get(),
            "local": getattr(self.world.local, "value", None),
            "cell": self.world.cell.now,
        }
        assert self.model.state == found

    def steps(self, program):
        self.check()
        for what, *arguments in program:
            getattr(self, "do_" + what.replace(" ", "_"))(*arguments)
            self.check()

    def scope(self, state, rules, body):
        """Run the body of a scope on the model's side, too."""
        before = self.model.state, self.model.policy
        self.model.state, self.model.policy = dict(state), rules
        try:
            self.steps(body)
        finally:
            self.model.state, self.model.policy = before

    def do_check(self):
        pass

    def do_capture(self):
        self.snapshots.append(self.world.registry.capture())
        self.model.capture()

    def do_set(self, name, value, body):
        world, model = self.world, self.model
        state = {**model.state, name: value}
        if name in ("contextvars", "named"):
            chosen = variable if name == "contextvars" else named
            token = chosen.set(value)
            self.scope(state, model.policy, body)
            chosen.reset(token)
        elif name == "local":
            before = getattr(world.local, "value", MISSING)
            self.put_local(MISSING if value is None else value)
            self.scope(state, model.policy, body)
            self.put_local(before)
        else:
            before, world.cell.now = world.cell.now, value
            self.scope(state, model.policy, body)
            world.cell.now = before

    def put_local(self, value):
        if value is not MISSING:
            self.world.local.value = value
        else:
            self.world.local.__dict__.pop("value", None)

    def do_run(self, index, body):
        if self.snapshots:
            index %= len(self.snapshots)
            state, rules = self.model.under(index)
            self.snapshots[index].run(self.scope, state, rules, body)

    def do_active(self, index, body):
        if self.snapshots:
            index %= len(self.snapshots)
            state, rules = self.model.under(index)
            with self.snapshots[index].active():
                self.scope(state, rules, body)

    def do_thread(self, index, body):
        if not self.snapshots:
            return
        index %= len(self.snapshots)
        before = self.model.state, self.model.policy
        failures = []

        def elsewhere():
            try:
                self.model.state, self.model.policy = dict.fromkeys(NAMES), {}
                self.check()
                state, rules = self.model.under(index)
                self.snapshots[index].run(self.scope, state, rules, body)
                self.check()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(TIMEOUT)
        self.model.state, self.model.policy = before
        for failure in failures:
            raise failure

    def do_suppress(self, listed, body):
        rules = dict.fromkeys(listed or ["*"], "unchanged")
        with suppress(*listed):
            self.scope(self.model.state, self.model.within(rules), body)

    def do_clear(self, listed, body):
        rules = dict.fromkeys(listed, "clear")
        with policy(clear=listed):
            self.scope(self.model.state, self.model.within(rules), body)

    def do_clear_but(self, name, body):
        with policy(propagate=name, clear="*"):
            rules = {name: "propagate", "*": "clear"}
            self.scope(self.model.state, self.model.within(rules), body)


@given(program=programs)
@settings(
    deadline=None,
    max_examples=500,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def nesting_is_as_documented(program):
    """Run a program that hypothesis made up."""
    carrier = next(c for c in ctxcarry.carriers() if c.name == "contextvars")
    machine = Machine(carrier)
    Context().run(machine.steps, program)
    machine.world.check(None)


def test_nesting_is_as_documented():
    """Any nesting of run, active, threads, suppress and clear does what a simple model says."""
    nesting_is_as_documented()


PROGRAMS = {
    "clear in run": [
        ("set", "local", 1, [("clear", ["local"], [("capture",)]), ("run", 0, [("check",)])])
    ],
    "active in run in active": [
        ("set", "contextvars", 1, [("capture",)]),
        ("set", "cell", 2, [("capture",)]),
        ("active", 0, [("run", 1, [("active", 0, [("capture",), ("check",)])]), ("run", 2, [])]),
    ],
    "suppressed capture under another snapshot": [
        ("set", "named", 1, [("capture",)]),
        (
            "suppress",
            ["named"],
            [("set", "named", 2, [("capture",), ("run", 0, [("run", 1, [])])])],
        ),
    ],
    "thread": [
        ("set", "local", 3, [("set", "contextvars", 2, [("capture",)])]),
        ("thread", 0, [("capture",), ("thread", 1, [("check",)])]),
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nesting_by_example(name, contextvars_carrier):
    """Chosen programs, so that the model and the machine are seen to work."""
    machine = Machine(contextvars_carrier)
    machine.steps(PROGRAMS[name])
    assert machine.model.captured
    assert variable not in copy_context() or variable.get() is None
