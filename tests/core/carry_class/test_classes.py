"""Classes of every kind."""

import abc
import dataclasses
import enum
import inspect

import pytest
from carry_class_subjects import bare, variable

from ctxcarry import carry_context


def test_class_without_init():
    """A class without ``__init__`` is decorated like any other."""

    @carry_context
    class Plain:
        def seen(self):
            return variable.get()

    assert "default" == Plain().seen()
    with pytest.raises(TypeError):
        Plain(1)


def test_class_with_new_only(in_thread):
    """A class whose arguments go to ``__new__`` is made as before."""

    @carry_context
    class Pair:
        def __new__(cls, one, two):
            self = super().__new__(cls)
            self.both = one, two
            variable.set("base")
            return self

        def seen(self):
            return self.both, variable.get()

    assert ((1, 2), "base") == in_thread(Pair, 1, 2).seen()
    assert ((1, 2), "base") == in_thread(Pair, one=1, two=2).seen()


def test_dataclass(in_thread):
    """A dataclass is decorated like any other, and compares as before."""

    @carry_context
    @dataclasses.dataclass
    class Data:
        one: int
        two: int = 2

        def __post_init__(self):
            variable.set("base")

        def seen(self):
            return self.one + self.two, variable.get()

    data = in_thread(Data, 1)
    assert (3, "base") == data.seen()
    assert data == Data(1)
    assert "two=2" in repr(data)


def test_abstract_class(in_thread):
    """An abstract class stays abstract, and its subclasses carry."""

    @carry_context
    class Shape(abc.ABC):
        def __init__(self):
            variable.set("base")

        @abc.abstractmethod
        def area(self):
            """Return the area."""

    with pytest.raises(TypeError, match="abstract"):
        Shape()

    class Square(Shape):
        def area(self):
            return variable.get()

    assert "base" == in_thread(Square).area()


def test_exception_class(in_thread):
    """An exception class can be decorated, raised and caught."""

    @carry_context
    class Problem(Exception):
        def seen(self):
            return variable.get(), self.args

    def make():
        variable.set("base")
        return Problem(1, 2)

    assert ("base", (1, 2)) == in_thread(make).seen()


def test_subclass_chain(in_thread):
    """A subclass carries too; its base is what the whole chain of ``__init__`` set."""

    @carry_context
    class First:
        def __init__(self):
            variable.set("first")
            bare.set("first")

        def inherited(self):
            return variable.get(), bare.get(None)

        def overridden(self):
            return "first", variable.get()

    class Second(First):
        def __init__(self):
            super().__init__()
            variable.set("second")

        def overridden(self):
            return super().overridden(), variable.get()

        def own(self):
            return variable.get(), bare.get(None)

    class Third(Second):
        pass

    for cls in (Second, Third):
        instance = in_thread(cls)
        assert ("second", "first") == instance.inherited() == instance.own()
        assert (("first", "second"), "second") == instance.overridden()
    assert ("first", "first") == in_thread(First).inherited()


def test_subclass_that_sets_before_and_after(in_thread):
    """A method called by a base's ``__init__`` sees what was set so far."""

    @carry_context
    class First:
        def __init__(self):
            bare.set("first")
            self.early = self.seen()

        def seen(self):
            return variable.get(), bare.get(None)

    class Second(First):
        def __init__(self):
            variable.set("before")
            super().__init__()
            variable.set("after")
            self.late = self.seen()

    instance = in_thread(Second)
    assert (("before", "first"), ("after", "first")) == (instance.early, instance.late)
    assert ("after", "first") == instance.seen()


def test_subclass_that_does_not_call_its_bases_init(in_thread):
    """A subclass that makes its own start has the base that it set."""

    @carry_context
    class First:
        def __init__(self):
            variable.set("first")

        def seen(self):
            return variable.get()

    class Second(First):
        def __init__(self):
            variable.set("second")

    assert "second" == in_thread(Second).seen()


def test_decorated_subclass_of_a_plain_class(in_thread):
    """Methods that a decorated class inherits see the base; the plain class stays plain."""

    class Plain:
        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get()

    before = dict(vars(Plain))

    @carry_context
    class Carried(Plain):
        pass

    assert "base" == in_thread(Carried).seen()
    assert "default" == in_thread(Plain).seen()
    assert before == dict(vars(Plain))


def test_diamond_keeps_the_order_of_methods():
    """Decorating a class does not change which method cooperative inheritance finds."""

    class Top:
        def __init__(self):
            self.order = ["top"]

        def who(self):
            return ["top"]

    @carry_context
    class Left(Top):
        pass

    class Right(Top):
        def __init__(self):
            super().__init__()
            self.order.append("right")

        def who(self):
            return ["right", *super().who()]

    class Bottom(Left, Right):
        pass

    assert ["right", "top"] == Bottom().who()
    assert ["top", "right"] == Bottom().order


def test_init_subclass_of_the_class_is_kept():
    """The class's own ``__init_subclass__`` is still called, with its arguments."""
    calls = []

    @carry_context
    class First:
        def __init_subclass__(cls, *, mark, **kwargs):
            super().__init_subclass__(**kwargs)
            calls.append((cls.__name__, mark))

    class Second(First, mark=1):
        pass

    class Third(Second, mark=2):
        pass

    assert [("Second", 1), ("Third", 2)] == calls


def test_init_subclass_in_a_diamond():
    """Every ``__init_subclass__`` of a cooperative hierarchy is called."""
    calls = []

    @carry_context
    class Left:
        pass

    class Right:
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            calls.append(cls.__name__)

    class Bottom(Left, Right):
        pass

    assert ["Bottom"] == calls
    assert Bottom()


def test_decorated_twice(in_thread):
    """Decorated twice, or with a decorated base, a method has one layer and carries."""

    @carry_context
    @carry_context
    class First:
        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get(), len(inspect.stack())

    @carry_context
    class Second(First):
        pass

    @carry_context
    class Once:
        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get(), len(inspect.stack())

    def both(cls):
        return in_thread(cls).seen()

    assert both(Once) == both(First) == both(Second)


def test_slots(in_thread):
    """A class with slots needs ``__weakref__`` among them, and is told so."""

    @carry_context
    class Ready:
        __slots__ = ("__weakref__", "value")

        def __init__(self):
            variable.set("base")

        def seen(self):
            return variable.get()

    assert "base" == in_thread(Ready).seen()

    @carry_context
    class Tight:
        __slots__ = ("value",)

        def __init__(self):
            self.value = 1

    with pytest.raises(TypeError, match="__weakref__"):
        Tight()


def test_unhashable_and_equal_instances(in_thread):
    """Instances that compare equal, or have no hash, have each its own base."""

    @carry_context
    class Same:
        def __init__(self, value):
            variable.set(value)

        def __eq__(self, other):
            return True

        __hash__ = None

        def seen(self):
            return variable.get()

    one, two = in_thread(Same, 1), in_thread(Same, 2)
    assert [1, 2] == [one.seen(), two.seen()]


def test_enum_members_still_work():
    """A class that is no ordinary one is refused or works, and does not break."""

    @carry_context
    class Color(enum.Enum):
        RED = 1

        def seen(self):
            return self.value, variable.get()

    assert (1, "default") == Color.RED.seen()
    assert Color.RED is Color(1)
