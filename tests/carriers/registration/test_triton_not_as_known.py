"""A Triton that is not as known is told of, and breaks nothing."""

from __future__ import annotations

import pytest
from registration_subjects import SHOWN

SABOTAGE = {
    "no allocator": "del A._allocator",
    "no module": "sys.modules['triton.runtime._allocation'] = None",
    "nothing to unset it with": "A._allocator = lambda *_: None; del A.NullAllocator",
    "a threading.local": "import threading; A._allocator = threading.local()",
    "something else": "A._allocator = None",
}


@pytest.mark.parametrize("change", SABOTAGE)
def test_unknown_triton_is_told_and_breaks_nothing(change, python):
    """Where Triton keeps its allocator otherwise, that is told, and everything else works."""
    pytest.importorskip("triton")
    told = python(
        SHOWN
        + f"""
import triton
import triton.runtime._allocation as A
{SABOTAGE[change]}
import contextvars
import ctxcarry
tenant = contextvars.ContextVar("tenant", default="none")
tenant.set("me")
with ctxcarry.executor(1) as pool:
    carried = pool.submit(tenant.get).result()
tell(names=names(), unavailable=ctxcarry.registry.unavailable(), carried=carried,
     only=only("triton.allocator"), explained=ctxcarry.capture().explain())
"""
    )
    assert "me" == told["carried"]
    assert "triton.allocator" not in told["names"]
    assert "triton.allocator" in told["unavailable"]
    assert told["unavailable"]["triton.allocator"] in told["only"]


def test_stub_in_place_of_triton_breaks_nothing(python):
    """A mere module called triton, as some packages make one, is told of as unavailable."""
    told = python(
        SHOWN
        + """
import types
sys.modules["triton"] = types.ModuleType("triton")
import ctxcarry
with ctxcarry.executor(1) as pool:
    ran = pool.submit(int).result()
tell(names=names(), ran=ran, unavailable=ctxcarry.registry.unavailable())
"""
    )
    assert (["contextvars"], 0) == (told["names"], told["ran"])
    assert {"triton.allocator", "triton.profile_allocator"} == set(told["unavailable"])


def test_unknown_triton_breaks_no_import_where_warnings_are_errors(python):
    """`import triton` works under -W error although a carrier of it cannot be registered."""
    pytest.importorskip("triton")
    told = python(
        """
import ctxcarry
ctxcarry.register(ctxcarry.ValueCarrier("triton.allocator", lambda: None, id, default=None))
with warnings.catch_warnings():
    warnings.simplefilter("error", ctxcarry.CtxCarryWarning)
    try:
        import triton
    except Exception as error:
        failure = repr(error)
    else:
        failure = ""
tell(failure=failure)
"""
    )
    assert "" == told["failure"]


@pytest.mark.parametrize(
    "ask",
    [
        "ctxcarry.carry_context(only='triton.allocator')(lambda: 0).bind()()",
        "ctxcarry.executor(1, policy=ctxcarry.policy(propagate='triton.allocator')).submit(int)",
    ],
    ids=["carry_context", "policy"],
)
def test_asking_for_an_unavailable_context_is_an_error(ask, python):
    """Who asks for a context by name is told that it cannot be carried, as by capture(only=)."""
    pytest.importorskip("triton")
    told = python(
        SHOWN
        + f"""
import triton.runtime._allocation as A
del A._allocator
import ctxcarry
try:
    {ask}
except ctxcarry.CarrierError as error:
    failure = str(error)
else:
    failure = "none"
tell(failure=failure, reason=ctxcarry.registry.unavailable()["triton.allocator"])
"""
    )
    assert told["reason"] in told["failure"]
