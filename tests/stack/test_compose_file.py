"""docker-compose.yml: read by the library that Docker Compose uses; what it mounts is there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.dashboards import FOLDER
from tests.stack.names import ROOT
from tests.tools import JAEGER, PROMETHEUS, Compose
from tests.tools.prometheus import FLAGS

FILE = ROOT / "docker-compose.yml"
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+")
OWN = "streamloop-example-orders:local"


@pytest.fixture
def services(compose: Compose) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose.project(FILE)["services"]
    return found


def test_compose_reads_the_file(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {
        "kafka",
        "jaeger",
        "prometheus",
        "grafana",
        "producer",
        "member-1",
        "member-2",
    }


def test_a_wrong_file_is_refused(compose: Compose, tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("condition: service_healthy", "condition: x"))
    with pytest.raises(ValueError, match="is refused"):
        compose.project(wrong)


def test_every_image_is_pinned_and_every_service_has_a_health_check(
    services: dict[str, dict[str, Any]],
) -> None:
    for name, service in services.items():
        assert service["image"] == OWN or PINNED.fullmatch(service["image"]), name
        assert service["healthcheck"]["test"], name


def test_the_images_are_the_versions_that_the_tests_run(services: dict[str, dict[str, Any]]) -> None:
    pom = (ROOT / "tests" / "kafka" / "pom.xml").read_text(encoding="utf-8")
    kafka = re.search(r"<kafka.version>([^<]+)<", pom)
    assert kafka is not None
    assert services["kafka"]["image"] == f"apache/kafka:{kafka.group(1)}"
    # Prometheus' module v0.316.0 is its release 3.16.0; Jaeger's v1.76.0 is its release 2.13.0.
    _, minor, patch = PROMETHEUS.version.split(".")
    assert services["prometheus"]["image"] == f"prom/prometheus:v{minor[0]}.{int(minor[1:])}.{patch}"
    assert JAEGER.version == "1.76.0"
    assert services["jaeger"]["image"] == "jaegertracing/jaeger:2.13.0"


def test_ports_are_published_on_this_machine_only_and_once(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    numbers = [port["published"] for port in published]
    assert len(set(numbers)) == len(numbers)


def test_every_file_that_is_mounted_is_there_and_mounted_read_only(
    services: dict[str, dict[str, Any]],
) -> None:
    mounts = [
        (name, volume)
        for name, service in services.items()
        for volume in service.get("volumes", ())
        if volume["type"] == "bind"
    ]
    assert {name for name, _ in mounts} == {"jaeger", "prometheus", "grafana"}
    for name, volume in mounts:
        assert Path(volume["source"]).exists(), (name, volume)
        assert volume["read_only"], (name, volume)


def test_data_outlives_the_containers_in_named_volumes(services: dict[str, dict[str, Any]]) -> None:
    named = {
        name: volume["target"]
        for name, service in services.items()
        for volume in service.get("volumes", ())
        if volume["type"] == "volume"
    }
    assert named == {
        "kafka": services["kafka"]["environment"]["KAFKA_LOG_DIRS"],
        "prometheus": "/prometheus",
        "grafana": "/var/lib/grafana",
    }
    assert "--storage.tsdb.path=/prometheus" in services["prometheus"]["command"]


def test_prometheus_runs_with_the_flags_that_the_tests_use_and_finds_its_files(
    services: dict[str, dict[str, Any]],
) -> None:
    command = services["prometheus"]["command"]
    assert set(FLAGS) <= set(command)
    [mounted] = [each for each in services["prometheus"]["volumes"] if each["type"] == "bind"]
    assert f"--config.file={mounted['target']}/prometheus.yml" in command
    config = yaml.safe_load((Path(mounted["source"]) / "prometheus.yml").read_text(encoding="utf-8"))
    for pattern in config["rule_files"]:
        assert list(Path(mounted["source"]).glob(pattern)), pattern


def test_prometheus_scrapes_every_member_where_it_serves(services: dict[str, dict[str, Any]]) -> None:
    text = (ROOT / "stack" / "prometheus" / "targets" / "members.json").read_text(encoding="utf-8")
    members = {name: each for name, each in services.items() if name.startswith("member-")}
    assert len(members) == 2
    scraped = {target for entry in json.loads(text) for target in entry["targets"]}
    assert scraped == {
        f"{name}:{each['environment']['STREAMLOOP_OPS_ADDRESS'].rpartition(':')[2]}"
        for name, each in members.items()
    }


def test_members_send_spans_and_push_no_metrics_besides_the_scrape(
    services: dict[str, dict[str, Any]],
) -> None:
    for name in ("member-1", "member-2"):
        environment = services[name]["environment"]
        assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://jaeger:4317"
        assert environment["STREAMLOOP_METRICS_EXPORTER"] == "none"
        assert environment["STREAMLOOP_MEMBER"] == name


def test_grafana_finds_its_dashboards_where_its_provisioning_looks(
    services: dict[str, dict[str, Any]],
) -> None:
    grafana = services["grafana"]
    mounts = {each["target"]: each["source"] for each in grafana["volumes"] if each["type"] == "bind"}
    assert Path(mounts["/etc/grafana/dashboards"]) == FOLDER
    provisioning = Path(mounts["/etc/grafana/provisioning"])
    providers = yaml.safe_load((provisioning / "dashboards" / "dashboards.yml").read_text(encoding="utf-8"))
    assert [each["options"]["path"] for each in providers["providers"]] == ["/etc/grafana/dashboards"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (FOLDER / home.name).is_file()


def test_there_is_no_secret(services: dict[str, dict[str, Any]]) -> None:
    words = re.compile("password|secret|token|credential", re.IGNORECASE)
    for name, service in services.items():
        assert not service.get("secrets"), name
        # A name without a value is taken from the shell: the console's tokens are.
        given = {each for each, value in service.get("environment", {}).items() if value}
        found = [each for each in given if words.search(each)]
        assert not found, name


def test_a_member_gets_the_time_that_its_drain_takes(services: dict[str, dict[str, Any]]) -> None:
    assert services["member-1"]["stop_grace_period"] == "1m8s"
