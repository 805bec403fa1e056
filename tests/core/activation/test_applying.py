"""Activation is all or nothing, and gives back the tokens that it got."""

import pytest
from activation_subjects import FAR, HOWS, NEAR, Boom, Putting, Scene, Scripted

from ctxcarry import MISSING, UNCHANGED, CarrierError, Registry


@pytest.mark.parametrize("how", HOWS)
def test_order_and_reverse_order(how, kind):
    """Carriers are applied in order and undone in reverse, around the work."""
    scene = Scene(kind)
    seen = scene.activate(how, lambda: (scene.log.append("work"), scene.values())[1])
    applied = [("apply", name) for name in "abcd"]
    undone = [("undo", name) for name in "dcba"]
    assert [*applied, "work", *undone] == scene.log
    assert NEAR == seen
    assert FAR == scene.values()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("failing", "abcd")
def test_apply_fails(how, kind, failing):
    """What came before is undone in reverse, the work does not start, the carrier is named."""
    scene = Scene(kind, **{failing: {"apply": Boom}})
    with pytest.raises(CarrierError, match=f"'{failing}' failed to apply") as caught:
        scene.activate(how, lambda: pytest.fail("started"))
    error = caught.value
    assert (failing, "apply") == (error.carrier, error.stage)
    assert isinstance(error.__cause__, Boom)
    assert f"Boom: apply {failing}" in str(error)
    before = "abcd"[: "abcd".index(failing)]
    expected = [("apply", n) for n in (*before, failing)] + [("undo", n) for n in reversed(before)]
    assert expected == scene.log
    assert FAR == scene.values()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_apply_is_interrupted(how, kind, interrupt):
    """An interrupt stays what it is, and everything is undone."""
    scene = Scene(kind, c={"apply": interrupt})
    with pytest.raises(interrupt):
        scene.activate(how, lambda: pytest.fail("started"))
    assert FAR == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_apply_fails_and_so_does_its_undoing(how, kind, caplog):
    """The first failure is raised; those of undoing are noted on it, and all undos are tried."""
    scene = Scene(kind, a={"undo": Boom}, b={"undo": Boom}, d={"apply": Boom})
    with pytest.raises(CarrierError) as caught:
        scene.activate(how, lambda: pytest.fail("started"))
    assert ("d", "apply") == (caught.value.carrier, caught.value.stage)
    notes = "\n".join(caught.value.__notes__)
    assert "'b' failed to undo" in notes
    assert "'a' failed to undo" in notes
    assert {**FAR, "a": "near a", "b": "near b"} == scene.values()


@pytest.mark.parametrize("how", HOWS)
def test_capture_fails_on_the_far_side(how):
    """A carrier that cannot say what is current is named, and what came before it is undone."""
    scene = Scene(Putting)
    scene.carriers["c"].fails["capture"] = Boom
    with pytest.raises(CarrierError, match="'c' failed") as caught:
        scene.activate(how, lambda: pytest.fail("started"))
    assert "c" == caught.value.carrier
    assert isinstance(caught.value.__cause__, Boom)
    assert FAR == scene.values()


@pytest.mark.parametrize("failing", "ad")
def test_capture_fails_on_the_near_side(failing, kind):
    """A carrier that cannot capture is named, and nothing has happened."""
    scene = Scene(kind)
    scene.carriers[failing].fails["capture"] = Boom
    scene.log.clear()
    with pytest.raises(CarrierError, match=f"'{failing}' failed to capture") as caught:
        scene.registry.capture()
    assert (failing, "capture") == (caught.value.carrier, caught.value.stage)
    assert isinstance(caught.value.__cause__, Boom)
    assert {("capture", failing)} == set(scene.log)


def test_capture_fails_once():
    """A carrier that fails at its first call only is still the one that is named."""

    class Flaky(Scripted):
        def capture(self):
            self.fails, fails = {}, self.fails
            if fails:
                raise Boom
            return self.value

    registry, log = Registry(), []
    for name in "ab":
        registry.register(Scripted(name, log))
    registry.register(Flaky("flaky", log, capture=Boom))
    registry.register(Scripted("d", log))
    with pytest.raises(CarrierError) as caught:
        registry.capture()
    assert isinstance(caught.value.__cause__, Boom)
    assert "flaky" == caught.value.carrier


def test_interrupted_capture_stays_an_interrupt():
    """A KeyboardInterrupt while capturing is not turned into something else."""
    scene = Scene(Scripted)
    scene.carriers["b"].fails["capture"] = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        scene.registry.capture()


def test_unchanged_is_not_undone():
    """A carrier that says UNCHANGED is not asked to undo."""

    class Steady(Scripted):
        def apply(self, state):
            self.log.append(("apply", self.name))
            return UNCHANGED

    registry, log = Registry(), []
    carrier = registry.register(Steady("steady", log))
    carrier.value = "near"
    snapshot = registry.capture()
    carrier.value = "far"
    snapshot.run(lambda: log.append("work"))
    assert [("apply", "steady"), "work"] == log


@pytest.mark.parametrize("token", [None, MISSING, 0, ()], ids=repr)
def test_any_token_is_given_back(token):
    """Whatever apply returned, but UNCHANGED, is what undo gets."""

    class Tokens(Scripted):
        def apply(self, state):
            return token

        def undo(self, given):
            self.log.append(given)

    registry, log = Registry(), []
    carrier = registry.register(Tokens("tokens", log))
    carrier.value = "near"
    snapshot = registry.capture()
    carrier.value = "far"
    snapshot.run(int)
    assert [token] == log
    assert token is log[0]


def test_carrier_gets_missing():
    """A context that was not set is applied as MISSING, never as None."""
    registry, log = Registry(), []
    carrier = registry.register(Scripted("a", log))
    carrier.value = MISSING
    snapshot = registry.capture()
    carrier.value = None
    assert MISSING is snapshot.run(lambda: carrier.value)
    assert carrier.value is None


def test_failing_work_that_catches_its_own_failure(kind):
    """A failed activation inside another one undoes the inner one only."""
    outer, inner = Scene(kind), Scene(kind, c={"apply": Boom})

    def work():
        with pytest.raises(CarrierError):
            inner.snapshot.run(int)
        return outer.values(), inner.values()

    assert (NEAR, FAR) == outer.snapshot.run(work)
