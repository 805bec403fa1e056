"""What several tests of activation use."""

from ctxcarry import Registry


class Boom(Exception):
    """What a carrier of these tests raises."""


class Scripted:
    """A carrier that logs its calls and fails where it is told to."""

    def __init__(self, name, log, **fails):
        self.name = name
        self.log = log
        self.fails = fails
        self.value = "far"

    def fail(self, stage):
        self.log.append((stage, self.name))
        if stage in self.fails:
            error = self.fails[stage]
            raise error if isinstance(error, BaseException) else error(f"{stage} {self.name}")

    def capture(self):
        if "capture" in self.fails:
            self.fail("capture")
        return self.value

    def apply(self, state):
        self.fail("apply")
        before, self.value = self.value, state
        return before

    def undo(self, token):
        self.fail("undo")
        self.value = token


class Putting(Scripted):
    """The same, through the short cut: one function that sets any state."""

    def put(self, state):
        near = self.value == "far"
        self.fail("apply" if near else "undo")
        self.value = state


class Scene:
    """Carriers a, b, c, d, and ways to activate a snapshot of them."""

    def __init__(self, kind, **fails):
        self.log = []
        self.registry = Registry()
        self.carriers = {n: kind(n, self.log, **fails.get(n, {})) for n in "abcd"}
        for carrier in self.carriers.values():
            self.registry.register(carrier)
            carrier.value = f"near {carrier.name}"
        self.snapshot = self.registry.capture()
        for carrier in self.carriers.values():
            carrier.value = "far"

    def values(self):
        return {name: carrier.value for name, carrier in self.carriers.items()}

    def activate(self, how, fn):
        if how == "active":
            with self.snapshot.active():
                return fn()
        return (self.snapshot.run if how == "run" else self.snapshot.wrap(fn))(
            *([fn] if how == "run" else [])
        )


HOWS = ["run", "wrap", "active"]
FAR = dict.fromkeys("abcd", "far")
NEAR = {name: f"near {name}" for name in "abcd"}
