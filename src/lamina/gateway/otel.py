"""Turns as OpenTelemetry sees them: a span and two histograms for each, by the GenAI conventions. No content, no keys.

Only imported where it is switched on. The conventions' names live in a private module of its packages, so they are
copied here, with the version from which they are.
"""

import re
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider as AnyMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import TracerProvider as AnyTracerProvider

from lamina.errors import SettingsError, format_value
from lamina.records import TurnRecord

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
INPUT, OUTPUT, CACHED = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
)
CONVERSATION, TOKEN_TYPE, ERROR = "gen_ai.conversation.id", "gen_ai.token.type", "error.type"
DURATION, TOKENS = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
DURATION_BOUNDS = [0.01 * 2**n for n in range(14)]
TOKEN_BOUNDS = [4**n for n in range(14)]
"""The bounds that the conventions recommend."""
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SECOND = 1_000_000_000


class Telemetry:
    def __init__(self, tracers: AnyTracerProvider, meters: AnyMeterProvider, provider: str, model: str) -> None:
        self._tracers, self._meters = tracers, meters
        self._tracer = tracers.get_tracer("lamina", schema_url=SCHEMA)
        meter = meters.get_meter("lamina", schema_url=SCHEMA)
        self._seconds = meter.create_histogram(
            DURATION, "s", "GenAI operation duration.", explicit_bucket_boundaries_advisory=DURATION_BOUNDS
        )
        self._tokens = meter.create_histogram(
            TOKENS, "{token}", "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BOUNDS,
        )  # fmt: skip
        self._common = {OPERATION: "chat", PROVIDER: provider, MODEL: model}

    def turn(self, turn: TurnRecord, parent: str = "") -> None:
        """A turn that ended; `parent` is the `traceparent` of the request that began it."""
        seconds = max(0.0, (turn.finished or turn.created) - turn.created)
        failed = {} if turn.state == "complete" else {ERROR: turn.state}
        prompt, cached, completion = (int(turn.usage.get(name, 0)) for name in ("prompt", "cached", "completion"))
        span = self._tracer.start_span(
            f"chat {self._common[MODEL]}", _context(parent), SpanKind.CLIENT, start_time=int(turn.created * _SECOND),
            attributes={**self._common, **failed, CONVERSATION: turn.session_id, "lamina.turn.id": turn.turn_id,
                        INPUT: prompt, CACHED: cached, OUTPUT: completion},
        )  # fmt: skip
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(int((turn.created + seconds) * _SECOND))
        self._seconds.record(seconds, {**self._common, **failed})
        if turn.usage:
            self._tokens.record(prompt, {**self._common, TOKEN_TYPE: "input"})
            self._tokens.record(completion, {**self._common, TOKEN_TYPE: "output"})

    def close(self) -> None:
        """Send what waits."""
        for provider in (self._tracers, self._meters):
            shutdown: Any = getattr(provider, "shutdown", None)
            if shutdown:
                shutdown()


def _context(parent: str) -> Context | None:
    found = _PARENT.fullmatch(parent)
    if not found:
        return None
    trace, span, flags = (int(piece, 16) for piece in found.groups())
    return set_span_in_context(
        NonRecordingSpan(SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags)))
    )


def telemetry(environ: Mapping[str, str], provider: str, model: str) -> Telemetry:
    """As OpenTelemetry's own variables say: OTEL_TRACES_EXPORTER is `otlp` (where its package is installed) or
    `console`, and where OTLP goes is OTEL_EXPORTER_OTLP_ENDPOINT."""
    resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", "lamina")})
    wanted = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if wanted == "console":
        spans, metrics = ConsoleSpanExporter(), ConsoleMetricExporter()
    elif wanted == "otlp":
        spans, metrics = _otlp()
    else:
        raise SettingsError("otel.bad_exporter", value=format_value(wanted))
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(spans))
    meters = MeterProvider([PeriodicExportingMetricReader(metrics)], resource=resource)
    return Telemetry(tracers, meters, provider, model)


def _otlp() -> tuple[Any, Any]:
    try:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter  # noqa: PLC0415 -- not ours  # pyright: ignore
    except ModuleNotFoundError:
        raise SettingsError("otel.no_exporter") from None
    made: Any = trace_exporter, metric_exporter
    return made[0].OTLPSpanExporter(), made[1].OTLPMetricExporter()
