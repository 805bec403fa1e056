"""Actors: what __init__ set is there where the caller has nothing, and the caller's value wins."""

import sys
import uuid

import pytest
import ray
import ray_work as work

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_plain_actor(made, something_set):
    """A method has what its caller has set, which that of a plain actor has not."""
    carried, plain = made(ctxcarry.ray.remote(work.Grad)), made(ray.remote(work.Grad))
    with something_set():
        found, lost = ray.get([carried.probe.remote(), plain.probe.remote()])
    after = ray.get(carried.probe.remote())
    assert (work.SET, work.UNSET, work.UNSET) == (found, lost, after)


def test_base(made):
    """The caller's value wins over what ``__init__`` set, which is there otherwise."""
    actor = made(ctxcarry.ray.remote(work.Based))
    token = work.VARIABLE.set("caller")
    found = actor.read.remote()
    work.VARIABLE.reset(token)
    assert ["caller", "base"] == ray.get([found, actor.read.remote()])


def test_what_the_creator_had_set(made, something_set):
    """An actor's ``__init__`` has its creator's contexts; they are not its base."""
    cls = ctxcarry.ray.remote(work.Grad).options(max_concurrency=2)
    with something_set("creator"):
        actor = made(cls)
    found = ray.get([actor.found_when_made.remote(), actor.probe.remote()])
    assert [("creator", False), work.UNSET] == found


def test_base_over_the_creator(made):
    """What ``__init__`` set over a value of the creator is the base, and the rest is not."""

    @ctxcarry.ray.remote(max_concurrency=2)
    class Actor:
        def __init__(self):
            self.found = work.both()
            work.OTHER.set("base")

        def look(self):
            return self.found, work.both()

    tokens = work.VARIABLE.set("creator"), work.OTHER.set("creator")
    actor = made(Actor)
    work.VARIABLE.reset(tokens[0])
    work.OTHER.reset(tokens[1])
    assert (("creator", "creator"), ("unset", "base")) == ray.get(actor.look.remote())


@pytest.mark.parametrize("cls", [work.Reader, work.Based])
def test_what_a_method_sets_stays(made, cls):
    """What a method sets is there in later ones, as in a plain actor, with or without a base."""
    for make in (ctxcarry.ray.remote, ray.remote):
        actor = made(make(cls))
        ray.get(actor.set.remote("by a method"))
        assert "by a method" == ray.get(actor.read.remote()), make


def test_what_a_method_sets_under_its_caller(made, variable_set):
    """What a method sets over a value of its caller's goes with the call; other things stay."""

    @ctxcarry.ray.remote
    class Actor:
        def set(self):
            work.VARIABLE.set("by a method")
            work.OTHER.set("by a method")
            return work.both()

        def look(self):
            return work.both()

    actor = made(Actor)
    with variable_set():
        inside = ray.get(actor.set.remote())
    after = ray.get(actor.look.remote())
    assert (("by a method",) * 2, ("unset", "by a method")) == (inside, after)


def test_without_init(made, variable_set):
    """A class without an ``__init__`` can be made where something is set, and carries."""
    cls = ctxcarry.ray.remote(work.Reader)
    with variable_set():
        actor = made(cls)
        found = ray.get(actor.read.remote())
    assert ("there", "unset") == (found, ray.get(actor.read.remote()))


def test_named_actors(made, variable_set):
    """A handle from `ray.get_actor`, of a detached actor too, carries."""
    name = f"named-{uuid.uuid4()}"
    cls = ctxcarry.ray.remote(work.Based).options(
        name=name, namespace="ctxcarry", lifetime="detached", max_concurrency=2
    )
    made(cls)
    handle = ray.get_actor(name, namespace="ctxcarry")
    with variable_set():
        found = handle.read.remote()
    assert ["there", ("base", True)] == ray.get([found, handle.elsewhere.remote()])


def test_get_if_exists(made, variable_set):
    """An actor that is there already is reached by get_if_exists, and carries."""
    cls = ctxcarry.ray.remote(work.Reader).options(name=f"{uuid.uuid4()}", get_if_exists=True)
    made(cls)
    with variable_set():
        assert "there" == ray.get(cls.remote().read.remote())


def test_actors_in_actors_and_handles(made, variable_set):
    """Calls of actors that an actor made, and of handles passed on, carry in turn."""

    @ctxcarry.ray.remote(num_cpus=0)
    class Outer:
        def __init__(self):
            self.inner = ctxcarry.ray.remote(work.Based).options(num_cpus=0).remote("inner")

        def handle(self):
            return self.inner

        def ask(self, other=None):
            return ray.get((other or self.inner).read.remote())

    @ctxcarry.ray.remote
    def ask(handle):
        return ray.get(handle.read.remote())

    first, second = made(Outer), made(Outer)
    handle = ray.get(first.handle.remote())

    def asked():
        calls = first.ask.remote(), second.ask.remote(handle), ask.remote(handle)
        return ray.get([*calls, handle.read.remote()])

    outside = asked()
    with variable_set():
        inside = asked()
    assert (["inner"] * 4, ["there"] * 4) == (outside, inside)


def test_workers_in_a_dict(made, variable_set):
    """Objects that an actor keeps, reached by name as in a fused worker, have what is carried."""
    inner = ctxcarry.ray.remote(work.Based)

    @ctxcarry.ray.remote(max_concurrency=2)
    class Fused:
        def __init__(self):
            self.workers = {"actor": inner.__ray_actor_class__(), "critic": work.Reader()}

        def call(self, key, name, *args):
            return getattr(self.workers[key], name)(*args)

    actor = made(Fused)
    calls = ("actor", "read"), ("critic", "read"), ("actor", "elsewhere")
    outside = ray.get([actor.call.remote(*call) for call in calls])
    with variable_set():
        inside = ray.get([actor.call.remote(*call) for call in calls])
    assert ["base", "base", ("base", True)] == outside
    assert ["there", "there", ("there", True)] == inside


def test_kinds_of_methods(made, variable_set):
    """Static and class methods, `__call__`, inherited and overridden ones carry."""

    class Parent:
        def __init__(self):
            work.OTHER.set("by parent")

        def inherited(self):
            return work.both()

        def overridden(self):
            return work.both()

    @ctxcarry.ray.remote(max_concurrency=2)
    class Child(Parent):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def overridden(self):
            return super().overridden()

        def __call__(self):
            return work.both()

        @staticmethod
        def static():
            return work.both()

        @classmethod
        def of_class(cls, *, keyword):
            return cls.__name__, work.read(), keyword

        @ray.method(num_returns=2)
        def two(self):
            return work.read(), self.number

    actor = made(Child, 7)
    with variable_set():
        methods = actor.inherited, actor.overridden, actor.__call__
        found = ray.get([method.remote() for method in methods])
        others = ray.get([actor.static.remote(), actor.of_class.remote(keyword=1)])
        two = actor.two.remote()
    assert [("there", "by parent")] * 3 == found
    assert ("there", ("Child", "there", 1)) == (others[0][0], others[1])
    assert ["there", 7] == ray.get(two)


def test_init_that_imports_the_framework(made):
    """What ``__init__`` sets of a framework that it is the first to import is the base."""

    @ctxcarry.ray.remote(max_concurrency=2, runtime_env={"env_vars": {"OF_ITS_OWN": "1"}})
    class Actor:
        def __init__(self):
            self.imported = "torch" in sys.modules
            import torch

            torch.set_grad_enabled(False)

        def look(self):
            return self.imported, work.probe()

    assert (False, ("unset", False)) == ray.get(made(Actor).look.remote())


def test_init_that_registers_a_carrier(made):
    """A context whose carrier ``__init__`` itself registers is in the base."""

    @ctxcarry.ray.remote(max_concurrency=2)
    class Actor:
        def __init__(self):
            carrier = ctxcarry.ThreadLocalCarrier("ray_work:LOCAL", fields=("value",))
            ctxcarry.register(carrier)
            work.LOCAL.value = "base"

        def look(self):
            return getattr(work.LOCAL, "value", "unset")

    assert "base" == ray.get(made(Actor).look.remote())


def test_an_error_in_init(made, variable_set):
    """An error in ``__init__`` is told as by plain Ray, with the user's error in it."""

    @ctxcarry.ray.remote
    class Actor:
        def __init__(self):
            work.fail(7)

        def look(self):
            """Do nothing."""

    with variable_set(), pytest.raises(ray.exceptions.ActorDiedError, match=r"\(7, 'there'\)"):
        ray.get(made(Actor).look.remote())


def test_restart(made, tmp_path):
    """An actor that was started again after its worker died has its base, and carries."""

    @ctxcarry.ray.remote(max_restarts=1, max_task_retries=1, max_concurrency=2)
    class Actor(work.Based):
        def look(self):
            return work.die_once(str(tmp_path / "marker")), self.found

    token = work.VARIABLE.set("creator")
    actor = made(Actor)
    work.VARIABLE.reset(token)
    assert ("base", "creator") == ray.get(actor.look.remote())
