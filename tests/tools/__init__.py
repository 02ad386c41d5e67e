"""Programs beside Kafka that tests and `make stack` run: Jaeger, Prometheus, promtool, Helm, a Kubernetes
control plane, and the readers of compose files and of Grafana's dashboards.

Built once a machine from the Go modules under go/, which pin their versions; run on free ports of 127.0.0.1,
with their data in a temporary folder, and ended by their own process id. What calls it: the fixtures in
fixtures.py and the package `stack`. It never touches a program that it did not start itself.
"""

from tests.tools.build import (
    COMPOSE,
    GRAFANA,
    HELM,
    JAEGER,
    PROMETHEUS,
    PROMTOOL,
    Tool,
    ToolUnavailableError,
    build,
)
from tests.tools.compose import Compose
from tests.tools.grafana import Grafana
from tests.tools.helm import Helm, HelmError
from tests.tools.jaeger import Jaeger
from tests.tools.prometheus import Prometheus
from tests.tools.promtool import Promtool

__all__ = [
    "COMPOSE",
    "GRAFANA",
    "HELM",
    "JAEGER",
    "PROMETHEUS",
    "PROMTOOL",
    "Compose",
    "Grafana",
    "Helm",
    "HelmError",
    "Jaeger",
    "Prometheus",
    "Promtool",
    "Tool",
    "ToolUnavailableError",
    "build",
]
