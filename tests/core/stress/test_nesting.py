"""Every way to nest: run, active, threads and policies do what a simple model says."""

import threading
from contextvars import Context, copy_context

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stress_subjects import TIMEOUT, World, named, variable

import ctxcarry
from ctxcarry import MISSING, policy, suppress

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
