"""Traces and metrics of turns by the GenAI conventions, read back with OpenTelemetry's own exporters."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names  # pyright: ignore[reportMissingTypeStubs]
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics  # pyright: ignore[reportMissingTypeStubs]
from opentelemetry.semconv.schemas import Schemas

from lamina.errors import SettingsError
from lamina.gateway import otel
from lamina.providers.scripted import ScriptedProvider
from tests.gateway.serving import running
from tests.gateway.test_core import ROUTES

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def turns(folder: Path, script: list[Any]) -> tuple[Any, dict[str, Any], str]:
    """The span of one turn, the points of the metrics by name, and everything as text."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    traces = otel.Telemetry(tracers, meters, "scripted", "scripted")
    provider = ScriptedProvider([script], repeat=True)
    async with running(folder / "s.db", routes=ROUTES, provider=provider, traces=traces) as site:
        await site.post("/api/turn", headers={"traceparent": PARENT})
        data: Any = reader.get_metrics_data()
    metrics = {m.name: list(m.data.data_points) for m in data.resource_metrics[0].scope_metrics[0].metrics}
    (span,) = spans.get_finished_spans()
    return span, metrics, span.to_json() + data.to_json()


async def test_a_turn_is_a_span_and_two_histograms_without_content(tmp_path: Path) -> None:
    span, metrics, everything = await turns(
        tmp_path, [{"text": "canary answer"}, {"usage": [70, 20, 30]}, {"done": "stop"}]
    )
    assert span.name == "chat scripted"
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.request.model"] == "scripted"
    assert span.attributes["gen_ai.usage.input_tokens"] == 70
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 20
    assert span.attributes["gen_ai.usage.output_tokens"] == 30
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert span.end_time >= span.start_time
    (duration,) = metrics["gen_ai.client.operation.duration"]
    assert duration.count == 1
    assert {p.attributes["gen_ai.token.type"]: p.sum for p in metrics["gen_ai.client.token.usage"]} == {
        "input": 70,
        "output": 30,
    }
    for secret in ("canary", "hello", "ann"):
        assert secret not in everything


async def test_a_turn_that_failed_says_so_in_one_word(tmp_path: Path) -> None:
    span, metrics, _ = await turns(tmp_path, [{"fault": "status", "code": 400}])
    assert (span.attributes["error.type"], span.status.is_ok) == ("failed", False)
    assert metrics["gen_ai.client.operation.duration"][0].attributes["error.type"] == "failed"


def test_the_copied_names_are_those_of_the_installed_conventions() -> None:
    assert (otel.OPERATION, otel.PROVIDER, otel.MODEL, otel.CONVERSATION, otel.TOKEN_TYPE) == (
        names.GEN_AI_OPERATION_NAME, names.GEN_AI_PROVIDER_NAME, names.GEN_AI_REQUEST_MODEL,
        names.GEN_AI_CONVERSATION_ID, names.GEN_AI_TOKEN_TYPE,
    )  # fmt: skip
    assert (otel.INPUT, otel.OUTPUT, otel.CACHED) == (
        names.GEN_AI_USAGE_INPUT_TOKENS, names.GEN_AI_USAGE_OUTPUT_TOKENS, names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
    )  # fmt: skip
    known = (gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION, gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE)
    assert known == (otel.DURATION, otel.TOKENS)
    assert otel.SCHEMA in {schema.value for schema in Schemas}


def test_an_exporter_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER cannot be 'zipkin'"):
        otel.telemetry({"OTEL_TRACES_EXPORTER": "zipkin"}, "p", "m")
    otel.telemetry({"OTEL_TRACES_EXPORTER": "console"}, "p", "m").close()
