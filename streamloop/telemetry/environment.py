"""The OTEL_* environment variables, as OpenTelemetry specifies them; and the resource that names a member.

A value that can't be used is warned about and counts as not set. Called once at the start of a run.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
)
from opentelemetry.sdk.resources import Resource as SdkResource

from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamloop.settings import Settings

log = logging.getLogger("streamloop.telemetry")

INTERVAL: Final = 60.0
TIMEOUT: Final = 30.0
"""Seconds: the specification's defaults of OTEL_METRIC_EXPORT_INTERVAL and _TIMEOUT."""

Protocol = Literal["grpc", "http/protobuf"]
Temporality = Literal["cumulative", "delta", "lowmemory"]
"""lowmemory: histograms delta, and counters, which are read when they are exported, cumulative."""


@dataclass(frozen=True, slots=True)
class MetricExport:
    """Where metrics are pushed, and how often. Times in seconds. The exporter reads the endpoint itself."""

    protocol: Protocol
    interval: float
    timeout: float
    temporality: Temporality = "cumulative"


@dataclass(frozen=True, slots=True)
class TraceExport:
    """Where spans go. The exporter reads endpoint and headers of the environment itself."""

    exporter: Literal["otlp", "console"]
    protocol: Protocol


def resource_of(settings: Settings, env: Mapping[str, str] = os.environ) -> SdkResource:
    """Who this is: the group and the member, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say."""
    own = SdkResource(
        {SERVICE_NAME: settings.group, SERVICE_INSTANCE_ID: settings.member, SERVICE_VERSION: __version__}
    )
    sdk = SdkResource.create({})
    given = OTELResourceDetector().detect() if env is os.environ else SdkResource({})
    return SdkResource({**sdk.attributes, **own.attributes, **given.attributes})


def metric_export(setting: Literal["auto", "otlp", "none"], env: Mapping[str, str]) -> MetricExport | None:
    """Whether metrics are pushed over OTLP. ``setting`` 'auto': as the environment says."""
    if _is_true(env.get("OTEL_SDK_DISABLED", "")) or setting == "none":
        return None
    exporters = {each.strip().lower() for each in env.get("OTEL_METRICS_EXPORTER", "").split(",")} - {""}
    if setting == "auto":
        configured = _endpoint(env)
        if exporters and "otlp" not in exporters:
            if exporters - {"none"}:
                log.warning(
                    "OTEL_METRICS_EXPORTER is %s: only otlp and none are known here, and /metrics serves "
                    "Prometheus; no metrics are pushed",
                    ",".join(sorted(exporters)),
                    extra={"kind": "telemetry"},
                )
            return None
        if not exporters and not configured:
            return None
    return MetricExport(
        _protocol(env),
        _milliseconds(env, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL),
        _milliseconds(env, "OTEL_METRIC_EXPORT_TIMEOUT", TIMEOUT),
        _temporality(env),
    )


def trace_export(setting: Literal["auto", "on", "off"], env: Mapping[str, str]) -> TraceExport | None:
    """Whether spans are made and exported. ``setting`` 'auto': as the environment says."""
    if _is_true(env.get("OTEL_SDK_DISABLED", "")) or setting == "off":
        return None
    exporters = {each.strip().lower() for each in env.get("OTEL_TRACES_EXPORTER", "").split(",")} - {""}
    if setting == "auto" and not exporters and not _endpoint(env, "TRACES"):
        return None
    if "none" in exporters and setting == "auto":
        return None
    if exporters - {"otlp", "console", "none"}:
        log.warning(
            "OTEL_TRACES_EXPORTER is %s: only otlp, console and none are known here",
            ",".join(sorted(exporters)),
            extra={"kind": "telemetry"},
        )
        if setting == "auto" and not exporters & {"otlp", "console"}:
            return None
    console = "console" in exporters and "otlp" not in exporters
    return TraceExport("console" if console else "otlp", _protocol(env, "TRACES"))


def _endpoint(env: Mapping[str, str], signal: str = "METRICS") -> str:
    return (
        env.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip()
        or env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    )


def _protocol(env: Mapping[str, str], signal: str = "METRICS") -> Protocol:
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        given = env.get(name, "").strip().lower()
        if given == "grpc":
            return "grpc"
        if given == "http/protobuf":
            return "http/protobuf"
        if given:
            log.warning(
                "%s is %r: known are grpc and http/protobuf, and http/protobuf is used",
                name,
                given,
                extra={"kind": "telemetry"},
            )
            break
    return "http/protobuf"


def _temporality(env: Mapping[str, str]) -> Temporality:
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    match env.get(name, "").strip().lower():
        case "" | "cumulative":
            return "cumulative"
        case "delta":
            return "delta"
        case "lowmemory":
            return "lowmemory"
        case other:
            log.warning(
                "%s is %r: known are cumulative, delta and lowmemory, and cumulative is used",
                name,
                other,
                extra={"kind": "telemetry"},
            )
            return "cumulative"


def _milliseconds(env: Mapping[str, str], name: str, default: float) -> float:
    """Seconds, from a variable in milliseconds."""
    given = env.get(name, "").strip()
    if not given:
        return default
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given) / 1000
    log.warning(
        "%s is %r: give a number of milliseconds; %g is used",
        name,
        given,
        default * 1000,
        extra={"kind": "telemetry"},
    )
    return default


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"
