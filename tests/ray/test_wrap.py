"""`ctxcarry.ray.wrap`: what exists already, made to carry."""

import pytest
import ray
import ray_work as work

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def task():
    """Return what is there."""
    return work.probe()


class Plain(work.Based):
    """An actor's class as it is in a library."""

    def look(self, first, second=2):
        """Return the arguments and the variable."""
        return first, second, work.read()

    def fail(self):
        """Raise an error that says what the variable is."""
        work.fail(7)

    @ray.method(num_returns=2)
    def two(self):
        """Return two results."""
        return work.read(), "second"

    def stream(self):
        """Yield the variable twice."""
        yield work.read()
        yield work.read()


def test_a_function(something_set):
    """A wrapped remote function carries, with its options; the one it was made of does not."""
    carried = ctxcarry.ray.wrap(task)
    with something_set():
        found = carried.remote(), carried.options(name="renamed").remote(), task.remote()
    assert [work.SET, work.SET, work.UNSET] == ray.get(list(found))


def test_options_of_a_function(variable_set):
    """The options that a remote function was made with are those of the wrapped one."""

    @ray.remote(num_returns=2)
    def two():
        return work.read(), "second"

    with variable_set():
        assert ["there", "second"] == ray.get(ctxcarry.ray.wrap(two).remote())


def test_a_class(made, variable_set):
    """A wrapped actor class has a base and carries; the one it was made of has neither."""
    plain = ray.remote(max_concurrency=2)(Plain)
    carried, other = made(ctxcarry.ray.wrap(plain)), made(plain)
    with variable_set():
        inside = [actor.read.remote() for actor in (carried, other)]
    outside = [actor.read.remote() for actor in (carried, other)]
    assert (["there", "unset"], ["base", "unset"]) == (ray.get(inside), ray.get(outside))


def test_choices(made, something_set):
    """Of a caller's contexts only those that `wrap` was told are carried."""
    function = ctxcarry.ray.wrap(task, exclude="torch.grad_mode")
    only = ctxcarry.ray.wrap(task, only=["torch.grad_mode"])
    cls = ctxcarry.ray.wrap(ray.remote(work.Grad), exclude="contextvars")
    handle = ctxcarry.ray.wrap(made(ray.remote(work.Grad)), exclude="contextvars")
    with something_set():
        found = ray.get([function.remote(), only.remote(), handle.probe.remote()])
        actor = made(cls)
        found += ray.get([actor.found_when_made.remote(), actor.probe.remote()])
    assert [("there", True)] + [("unset", False)] * 4 == found


def test_a_handle(made, variable_set):
    """Methods of a wrapped handle have their caller's contexts, and those of the handle not."""
    handle = made(ray.remote(max_concurrency=2)(Plain))
    wrapped = ctxcarry.ray.wrap(handle)
    with variable_set():
        found = wrapped.look.remote(1, second=3), handle.look.remote(1)
    assert [(1, 3, "there"), (1, 2, "unset")] == ray.get(list(found))
    assert (1, 2, "unset") == ray.get(wrapped.look.remote(1))


def test_what_a_method_of_a_wrapped_handle_sets(made, variable_set):
    """What a method of a wrapped handle sets stays set, as without."""
    wrapped = ctxcarry.ray.wrap(made(ray.remote(work.Based)))
    ray.get(wrapped.set.remote("by a method"))
    with variable_set():
        inside = ray.get(wrapped.read.remote())
    assert ("there", "by a method") == (inside, ray.get(wrapped.read.remote()))


def test_a_wrapped_handle_that_is_passed_on(made, variable_set):
    """Ray passes the handle on without what we put around it: it is to be wrapped again there."""

    @ctxcarry.ray.remote
    def ask(handle):
        again = ctxcarry.ray.wrap(handle)
        return ray.get([handle.read.remote(), again.read.remote()])

    wrapped = ctxcarry.ray.wrap(made(ray.remote(work.Reader)))
    with variable_set():
        assert ["unset", "there"] == ray.get(ask.remote(wrapped))


def test_arguments_and_errors_of_a_wrapped_handle(made, variable_set):
    """A wrapped handle refuses wrong arguments at the call, and errors are the user's."""
    wrapped = ctxcarry.ray.wrap(made(ray.remote(Plain)))
    with variable_set():
        with pytest.raises(TypeError, match="first"):
            wrapped.look.remote()
        with pytest.raises(work.OwnError) as caught:
            ray.get(wrapped.fail.remote())
    assert (7, "there") == caught.value.cause.args
    with pytest.raises(AttributeError, match="nothing"):
        wrapped.nothing  # noqa: B018


def test_results_of_a_wrapped_handle(made, variable_set):
    """How many results a method returns is as `ray.method` says."""
    wrapped = ctxcarry.ray.wrap(made(ray.remote(Plain)))
    with variable_set():
        assert ["there", "second"] == ray.get(wrapped.two.remote())


def test_streams_of_a_wrapped_handle(made):
    """A generator method of a wrapped handle is refused, in words that say what to do."""
    wrapped = ctxcarry.ray.wrap(made(ray.remote(Plain)))
    with pytest.raises(TypeError, match=r"stream is a generator.*ctxcarry\.ray\.remote"):
        wrapped.stream.remote()


def test_async_methods_of_a_wrapped_handle(made):
    """An async method of an actor made without ctxcarry is an error that says what to do."""

    class Actor:
        async def look(self):
            """Do nothing."""

    wrapped = ctxcarry.ray.wrap(made(ray.remote(Actor)))
    work.VARIABLE.set("there")
    with pytest.raises(TypeError, match=r"look is async.*ctxcarry\.ray\.remote"):
        ray.get(wrapped.look.remote())


def test_what_carries_already(made):
    """What carries already is returned as it is."""
    function, cls = ctxcarry.ray.remote(work.read), ctxcarry.ray.remote(work.Reader)
    handle, plain = made(cls), made(ray.remote(work.Reader))
    for target in (function, cls, handle):
        assert ctxcarry.ray.wrap(target) is target
    for target in (task, ray.remote(work.Reader), plain):
        wrapped = ctxcarry.ray.wrap(target)
        assert ctxcarry.ray.wrap(wrapped) is wrapped


def test_choices_for_what_carries_already(something_set):
    """A choice for what carries already is in force, and not passed over."""
    carried = ctxcarry.ray.remote(work.probe)
    chosen = ctxcarry.ray.wrap(carried, exclude="contextvars")
    with something_set():
        assert ("unset", False) == ray.get(chosen.remote())


@pytest.mark.parametrize("wrong", [7, work.read, work.Reader, None])
def test_other_things(wrong):
    """Something that Ray did not make is an error that names what to use."""
    with pytest.raises(TypeError, match=r"ctxcarry\.ray\.remote"):
        ctxcarry.ray.wrap(wrong)


def test_both_choices():
    """Both choices at once are an error."""
    with pytest.raises(ValueError, match="not both"):
        ctxcarry.ray.wrap(task, only="contextvars", exclude="torch.grad_mode")
