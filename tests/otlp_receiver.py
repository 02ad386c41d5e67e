"""A receiver of OTLP metrics in the test's process, over HTTP or gRPC. Called by tests of the push."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

if TYPE_CHECKING:
    from types import TracebackType

Key = tuple[str, tuple[tuple[str, str], ...]]


class OtlpReceiver:
    """Takes exports, as a context manager. ``refuse``: answer with an error instead."""

    def __init__(self, *, over_grpc: bool = False) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refuse = False
        self._grpc = over_grpc
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        if self._grpc:
            self._start_grpc()
        else:
            self._start_http()
        return self

    def _start_http(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.paths.append(self.path)
                receiver.take(
                    ExportMetricsServiceRequest.FromString(body),
                    {name.lower(): value for name, value in self.headers.items()},
                )
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(400 if receiver.refuse else 200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def _start_grpc(self) -> None:
        receiver = self

        class Servicer(MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                receiver.take(request, dict(context.invocation_metadata()))
                return ExportMetricsServiceResponse()

        self._server = grpc.server(ThreadPoolExecutor(2))
        add_MetricsServiceServicer_to_server(Servicer(), self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{port}"
        self._server.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._grpc:
            self._server.stop(None).wait()
        else:
            self._http.shutdown()
            self._http.server_close()

    def take(self, request: ExportMetricsServiceRequest, headers: dict[str, str]) -> None:
        with self._changed:
            self.requests.append(request)
            self.headers.append(headers)
            self._changed.notify_all()

    def wait(self, number: int, timeout: float = 20.0) -> ExportMetricsServiceRequest:
        """The newest request, once there were so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= number, timeout), len(self.requests)
            return self.requests[-1]


def resource_of(request: ExportMetricsServiceRequest) -> dict[str, str]:
    """The attributes of the resource."""
    [each] = request.resource_metrics
    return {attribute.key: attribute.value.string_value for attribute in each.resource.attributes}


def metrics_of(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    """The metrics by their names."""
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def points_of(metric: Any) -> dict[tuple[tuple[str, str], ...], Any]:
    """A metric's data points by their attributes, sorted."""
    data = getattr(metric, metric.WhichOneof("data"))
    return {
        tuple(sorted((attribute.key, attribute.value.string_value) for attribute in point.attributes)): point
        for point in data.data_points
    }
