"""install("ray") on a Ray that runs already: what was made remote before carries, plain after."""

import pytest
import ray
import ray_work as work

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def task():
    """Return what is there."""
    return work.probe()


@ray.remote
def nest(actor):
    """Return what a task has that this one calls, and a method that it calls."""
    return ray.get([task.remote(), actor.read.remote()])


def test_tasks(something_set, installed):
    """Tasks that were made before carry, and do not once it is uninstalled."""
    with something_set():
        inside = task.remote()
        ctxcarry.uninstall("ray")
        after = task.remote()
    assert [work.SET, work.UNSET] == ray.get([inside, after])


def test_actors(made, variable_set, installed):
    """Actors that were made remote before and created now have a base and carry."""
    actor = made(ray.remote(max_concurrency=2)(work.Based))
    with variable_set():
        inside = actor.read.remote()
    outside = actor.elsewhere.remote()
    ctxcarry.uninstall("ray")
    assert ["there", ("base", True)] == ray.get([inside, outside])
    # It is as it was made, with nothing to come from its callers.
    work.VARIABLE.set("later")
    assert ("base", True) == ray.get(actor.elsewhere.remote())


def test_handles_from_before(made, variable_set):
    """An actor that was created before stays plain, and works as it did."""
    actor = made(ray.remote(work.Reader))
    ctxcarry.install("ray")
    with variable_set():
        assert "unset" == ray.get(actor.read.remote())
    ctxcarry.uninstall("ray")


def test_handles_in_tasks(made, something_set, installed):
    """A task that carries passes its contexts on to methods of a handle that it is given."""
    actor = made(ray.remote(work.Reader))
    with something_set():
        _, read = ray.get(nest.remote(actor))
    assert "there" == read


def test_get_actor(made, variable_set, installed):
    """A handle that is looked up by name carries."""
    made(ray.remote(work.Reader).options(name="installed"))
    with variable_set():
        assert "there" == ray.get(ray.get_actor("installed").read.remote())


def test_signatures(made, something_set, installed):
    """Wrong arguments are refused at the call, and functions get what was passed."""

    @ray.remote
    def anything(*args, **kwargs):
        return args, kwargs

    with something_set():
        assert ((1,), {"a": 2}) == ray.get(anything.remote(1, a=2))
        with pytest.raises(TypeError):
            task.remote(other=1)


WAYS = {
    "apply": lambda pool: pool.apply(work.probe),
    "apply_async": lambda pool: pool.apply_async(work.probe).get(),
    "map": lambda pool: pool.map(work.probe, [1, 2])[1],
    "map_async": lambda pool: pool.map_async(work.probe, [1, 2]).get()[1],
    "imap": lambda pool: list(pool.imap(work.probe, range(3), chunksize=2))[2],
    "imap_unordered": lambda pool: next(iter(pool.imap_unordered(work.probe, [1]))),
    "starmap": lambda pool: pool.starmap(work.probe, [(1, 2)])[0],
}


def test_multiprocessing_pool(something_set):
    """Every way to hand work to Ray's Pool carries if it was made under install."""
    from ray.util.multiprocessing import Pool

    found = []
    for install in (False, True):
        if install:
            ctxcarry.install("ray")
        pool = Pool(1)
        try:
            with something_set():
                found.append({name: way(pool) for name, way in WAYS.items()})
        finally:
            pool.terminate()
            pool.join()
    ctxcarry.uninstall("ray")
    assert [dict.fromkeys(WAYS, work.UNSET), dict.fromkeys(WAYS, work.SET)] == found
