"""Spans of requests, by OpenTelemetry's ASGI package, where its variables name a collector."""

from __future__ import annotations

import os
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.command.errors import DataError
from pipeline.service.http.middleware import PROBES

PROTOCOL = "http/protobuf"
_ADDRESSES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def traced(app: ASGIApp, variables: Mapping[str, str] = os.environ) -> ASGIApp:
    """An application whose requests are spans; unchanged where no collector is named.

    The span takes the place of the client's in ``traceparent``: for the log, and for the engine.
    Raises DataError without the packages, or for a protocol other than OTLP over HTTP.
    """
    is_off = variables.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporter = variables.get("OTEL_TRACES_EXPORTER", "otlp")
    if is_off or exporter == "none" or not any(variables.get(name) for name in _ADDRESSES):
        return app
    protocol = next((variables[name] for name in _PROTOCOLS if variables.get(name)), PROTOCOL)
    if (exporter, protocol) != ("otlp", PROTOCOL):
        raise DataError(
            f"OTEL_TRACES_EXPORTER, {_PROTOCOLS[1]}: found {exporter} and {protocol}, expected "
            f"otlp and {PROTOCOL}"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.metrics import NoOpMeterProvider
        from opentelemetry.propagate import inject
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise DataError(
            f"OTEL_*: found no package {error.name}; install the extra: "
            "pip install 'tweetrerank[tracing]', or set OTEL_SDK_DISABLED=true"
        ) from None

    async def with_span(scope: Scope, receive: Receive, send: Send) -> None:
        carrier: dict[str, str] = {}
        inject(carrier)
        if scope["type"] == "http" and carrier:
            ours = {name.encode(): value.encode() for name, value in carrier.items()}
            others = [item for item in scope["headers"] if item[0] not in ours]
            scope = {**scope, "headers": [*others, *ours.items()]}
        await app(scope, receive, send)

    # The variables' own name of the service, if there is one, comes last and wins.
    default = Resource({SERVICE_NAME: "tweetrerank"})
    provider = TracerProvider(resource=default.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OpenTelemetryMiddleware(
        with_span,
        excluded_urls=_excluded(),
        tracer_provider=provider,
        meter_provider=NoOpMeterProvider(),
        exclude_spans=["receive", "send"],
    )


def _excluded() -> str:
    """Paths of probes, as the package reads them."""
    return ",".join(f"^https?://[^/]*{path}$" for path in sorted(PROBES))
