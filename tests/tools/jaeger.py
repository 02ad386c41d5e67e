"""Jaeger as a real process, all in one and in memory, with the file that docker-compose.yml mounts.

What calls it: the fixture `jaeger` and the package `stack`. Its API answers; its web pages are not in the Go
module, so none are served.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.realkafka.node import HOST
from tests.tools.build import JAEGER
from tests.tools.program import Program, address, request

CONFIG = Path(__file__).resolve().parents[2] / "stack" / "jaeger" / "jaeger.yml"


class Jaeger(Program):
    """Receives spans by OTLP and answers for traces."""

    tool = JAEGER
    port_count = 5

    def __init__(self, config: Path = CONFIG) -> None:
        super().__init__()
        self._config = config

    @property
    def otlp_grpc(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT with the protocol grpc."""
        return f"http://{address(self.ports[0])}"

    @property
    def otlp_http(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT with the protocol http/protobuf."""
        return f"http://{address(self.ports[1])}"

    @property
    def url(self) -> str:
        """The API that answers for traces."""
        return f"http://{address(self.ports[2])}"

    def arguments(self, folder: Path) -> Sequence[str]:
        return ["--config", str(self._config)]

    def environment(self) -> Mapping[str, str]:
        names = ("OTLP_GRPC", "OTLP_HTTP", "QUERY_HTTP", "QUERY_GRPC", "HEALTH")
        own = {f"JAEGER_{name}_PORT": str(port) for name, port in zip(names, self.ports, strict=True)}
        return {"JAEGER_LISTEN_HOST": HOST, **own}

    def ready(self) -> bool:
        health = request(f"http://{address(self.ports[4])}/status")
        return health is not None and health.status == 200

    def resource_spans(self, trace_id: str) -> list[dict[str, Any]]:
        """The trace as OTLP's resourceSpans; empty while Jaeger has none. trace_id: 32 hexadecimal digits."""
        if re.fullmatch("[0-9a-f]{32}", trace_id) is None:
            raise ValueError(f"{trace_id!r} is no trace id: 32 lower-case hexadecimal digits are expected")
        return _resource_spans(request(f"{self.url}/api/v3/traces/{trace_id}"))

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of the trace, each as OTLP's JSON with its resource's service.name as `service`."""
        return _spans(self.resource_spans(trace_id))

    def recent(self, service: str, *, last: timedelta = timedelta(hours=1)) -> list[dict[str, Any]]:
        """All spans of the traces that the service took part in during the given time."""
        now = datetime.now(UTC)
        query = {
            "query.service_name": service,
            "query.start_time_min": _rfc3339(now - last),
            "query.start_time_max": _rfc3339(now + timedelta(minutes=1)),
            "query.num_traces": "1000",  # without it the store in memory refuses to search
        }
        return _spans(_resource_spans(request(f"{self.url}/api/v3/traces", query)))

    def services(self) -> set[str]:
        """The names of all services that sent spans."""
        answer = request(f"{self.url}/api/v3/services")
        return (
            set(answer.json().get("services", ())) if answer is not None and answer.status == 200 else set()
        )


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _resource_spans(answer: Any) -> list[dict[str, Any]]:
    if answer is None or answer.status == 404:
        return []
    if answer.status != 200:
        raise RuntimeError(f"Jaeger answered {answer!r}")
    found: list[dict[str, Any]] = answer.json()["result"].get("resourceSpans", [])
    return found


def _spans(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for resource in resources:
        service = next(
            (
                attribute["value"].get("stringValue")
                for attribute in resource.get("resource", {}).get("attributes", ())
                if attribute["key"] == "service.name"
            ),
            None,
        )
        for scope in resource.get("scopeSpans", ()):
            found += [{**span, "service": service} for span in scope.get("spans", ())]
    return found
