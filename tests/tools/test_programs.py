"""The programs themselves: what they are asked for, with the configuration that users get."""

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.realkafka import wait_until
from tests.realkafka.node import HOST
from tests.tools import (
    JAEGER,
    Helm,
    HelmError,
    Jaeger,
    Prometheus,
    Promtool,
    Tool,
    ToolUnavailableError,
    build,
)
from tests.tools.build import TOOLS
from tests.tools.program import request

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
EXPOSITION = f"""\
# TYPE loop_processed counter
loop_processed_total{{group="billing"}} 41
# TYPE loop_processing_duration_seconds histogram
loop_processing_duration_seconds_bucket{{group="billing",le="0.1"}} 3 # {{trace_id="{TRACE_ID}"}} 0.05
loop_processing_duration_seconds_bucket{{group="billing",le="+Inf"}} 3
loop_processing_duration_seconds_sum{{group="billing"}} 0.15
loop_processing_duration_seconds_count{{group="billing"}} 3
# EOF
"""


@pytest.fixture
def member() -> Iterator[str]:
    """A server that answers like a member's /metrics; its host:port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = EXPOSITION.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(timeout=10)


def sent_trace(endpoint: str, service: str) -> str:
    """Send a trace of two spans; its id."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("send orders", kind=trace.SpanKind.PRODUCER) as first,
        tracer.start_as_current_span("process orders", kind=trace.SpanKind.CONSUMER),
    ):
        pass
    provider.shutdown()
    return format(first.get_span_context().trace_id, "032x")


def test_jaeger_finds_a_trace_by_its_id_and_by_its_service(jaeger: Jaeger) -> None:
    trace_id = sent_trace(jaeger.otlp_grpc, "shop")
    spans = wait_until(lambda: len(found := jaeger.spans(trace_id)) == 2 and found, 20, "both spans")
    assert spans
    by_name = {span["name"]: span for span in spans}
    assert by_name["process orders"]["parentSpanId"] == by_name["send orders"]["spanId"]
    assert {span["service"] for span in spans} == {"shop"}
    assert trace_id in {span["traceId"] for span in jaeger.recent("shop")}
    assert "shop" in jaeger.services()


def test_jaeger_answers_the_calls_of_grafanas_data_source(jaeger: Jaeger) -> None:
    trace_id = sent_trace(jaeger.otlp_grpc, "shop")
    wait_until(lambda: len(jaeger.spans(trace_id)) == 2, 20, "both spans")
    services = request(f"{jaeger.url}/api/services")
    assert services is not None
    assert "shop" in services.json()["data"]
    found = request(f"{jaeger.url}/api/traces/{trace_id}")
    assert found is not None
    assert len(found.json()["data"][0]["spans"]) == 2


def test_jaeger_has_no_trace_that_nobody_sent(jaeger: Jaeger) -> None:
    assert jaeger.spans("0" * 31 + "1") == []
    with pytest.raises(ValueError, match="no trace id"):
        jaeger.spans("../services")


def test_a_killed_jaeger_is_gone_and_the_next_test_gets_another(jaeger: Jaeger) -> None:
    jaeger.kill()
    assert not jaeger.running
    assert jaeger.services() == set()


def test_prometheus_scrapes_with_exemplars_and_takes_new_targets(
    prometheus: Callable[..., Prometheus], member: str
) -> None:
    server = prometheus()
    assert server.targets() == []
    server.scrape([member])
    wait_until(lambda: server.value("loop_processed_total") == 41, 60, "the scrape")
    [target] = server.targets()
    assert target["health"] == "up"
    assert target["labels"] == {"instance": member, "job": "streamloop"}
    now = time.time()
    [series] = server.exemplars("loop_processing_duration_seconds_bucket", now - 60, now + 60)
    assert series["exemplars"][0]["labels"]["trace_id"] == TRACE_ID
    assert {"loop_processed_total", "up"} <= server.metric_names()
    with pytest.raises(ValueError, match="parse error"):
        server.query("sum by (")


def test_prometheus_takes_otlp_under_the_names_of_the_scrape(
    prometheus: Callable[..., Prometheus],
) -> None:
    server = prometheus()
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=server.otlp))
    resource = Resource.create({"service.name": "billing", "service.instance.id": "member-1"})
    meters = MeterProvider(metric_readers=[reader], resource=resource)
    meters.get_meter("test").create_counter("loop.processed", unit="{message}").add(7, {"group": "billing"})
    meters.shutdown()
    [sample] = wait_until(lambda: server.query("loop_processed_total"), 20, "what was pushed")
    assert sample["value"][1] == "7"
    assert sample["metric"]["job"] == "billing"
    assert sample["metric"]["instance"] == "member-1"
    assert sample["metric"]["group"] == "billing"


def test_the_rules_are_loaded_and_none_is_wrong(prometheus: Callable[..., Prometheus]) -> None:
    server = prometheus()
    wait_until(
        lambda: all(rule["health"] == "ok" for rule in server.rules()), 30, lambda: str(server.rules())
    )
    assert "StreamloopNoMember" in {rule["name"] for rule in server.rules()}


def test_promtool_checks_the_text_form_of_metrics(promtool: Promtool) -> None:
    promtool.check_metrics("# HELP loop_x_total X.\n# TYPE loop_x_total counter\nloop_x_total 1\n")
    with pytest.raises(AssertionError, match="parsing error"):
        promtool.check_metrics("loop_x_total one\n")


def test_helm_makes_objects_of_a_chart_and_says_why_it_refuses(helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 1.0.0\n")
    (tmp_path / "values.yaml").write_text("size: 3\n")
    (tmp_path / "templates" / "map.yaml").write_text(
        "{{ if gt (int .Values.size) 5 }}{{ fail `size is at most 5` }}{{ end }}\n"
        "kind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {size: {{ .Values.size | quote }}}\n"
    )
    assert "v4.3.1" in helm.run("version")
    [made] = helm.template(tmp_path, release="shop", values={"size": 4})
    assert made["metadata"]["name"] == "shop"
    assert made["data"] == {"size": "4"}
    with pytest.raises(HelmError, match="size is at most 5"):
        helm.template(tmp_path, values={"size": 6})


def test_every_pin_has_a_version_and_a_place_of_its_own() -> None:
    assert {tool.name: tool.version for tool in TOOLS} == {
        "compose": "2.9.0",
        "grafana": "0.0.22",
        "promtool": "0.316.0",
        "prometheus": "0.316.0",
        "jaeger": "1.76.0",
        "helm": "4.3.1",
        "etcd": "3.7.3",
        "kube-apiserver": "1.34.4",
        "kube-controller-manager": "1.34.4",
        "kube-scheduler": "1.34.4",
        "kwok": "0.7.0",
        "keda-crds": "2.18.1",
        "prometheus-crds": "0.85.0",
    }
    assert len({tool.path for tool in TOOLS}) == len(TOOLS)


def test_without_go_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLS_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolUnavailableError, match=r"jaeger 1\.76\.0 .* needs Go; no go is on PATH"):
        build(JAEGER)


def test_a_build_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text("module x\n\ngo 1.24.6\n\nrequire example.invalid/y v1.0.0\n")
    cache = tmp_path / "cache"
    monkeypatch.setenv("TOOLS_CACHE", str(cache))
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    with pytest.raises(ToolUnavailableError, match=r"could not build wrong 1\.0\.0 .*no such package"):
        build(Tool("wrong", module, "./cmd", "example.invalid/y"))
    assert [path.name for path in cache.iterdir()] == ["go-build.lock"]
