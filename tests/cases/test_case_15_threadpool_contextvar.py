"""Case 15 (crewAI#4822, mlflow#24422, otel-contrib#1009): pool threads lose the parent span."""

from __future__ import annotations

import contextvars

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TENANT = contextvars.ContextVar("tenant", default="lost")


@pytest.fixture
def exporter():
    """Keep the spans that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    """Make a tracer of its own, so that no global provider is set."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        yield provider.get_tracer("cases")
    finally:
        provider.shutdown()


@pytest.fixture
def child(tracer):
    """Give work that opens a span and returns its parent's id, or None."""

    def work():
        with tracer.start_as_current_span("child") as span:
            return None if span.parent is None else span.parent.span_id

    return work


def test_fault(plain, tracer, child):
    """In a plain pool a span has no parent, and a ContextVar is not set."""
    TENANT.set("mine")
    with tracer.start_as_current_span("parent") as parent:
        assert (parent.get_span_context().span_id, None) == (child(), plain(child))
    assert "lost" == plain(TENANT.get)


def test_cure(way, tracer, child, exporter):
    """A span opened by the work is a child of the span of whoever handed it over."""
    with tracer.start_as_current_span("parent") as parent:
        assert parent.get_span_context().span_id == way(child)
        # The task closed its span in its own Context, so the parent is still current.
        assert parent is trace.get_current_span()
    assert way(child) is None
    assert ["child", "parent", "child"] == [span.name for span in exporter.get_finished_spans()]
    traces = [span.context.trace_id for span in exporter.get_finished_spans()]
    assert [True, False] == [traces[0] == traces[1], traces[1] == traces[2]]


def test_cure_of_a_variable(way):
    """A ContextVar is that of whoever handed the work over, and what the work sets is its own."""

    def work():
        before = TENANT.get()
        TENANT.set("the work's")
        return before

    assert "lost" == way(work)
    TENANT.set("mine")
    assert "mine" == way(work)
    TENANT.set("another")
    assert ("another", "another") == (way(work), TENANT.get())
