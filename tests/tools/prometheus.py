"""Prometheus as a real process, with the configuration and the rules that docker-compose.yml mounts.

What calls it: the fixture `prometheus` and the package `stack`. Its API answers; its web pages are not in the
Go module, so none are served. The targets are given here; everything else is the same as in the container.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.tools.build import PROMETHEUS
from tests.tools.program import Answer, Program, address, request

CONFIG = Path(__file__).resolve().parents[2] / "stack" / "prometheus"
FLAGS = ("--web.enable-otlp-receiver", "--enable-feature=exemplar-storage")
"""What its command line must have besides its configuration; docker-compose.yml has the same."""


class Prometheus(Program):
    """Scrapes the members at the given addresses (host:port), takes OTLP, and answers queries.

    config: a folder with prometheus.yml and rules.yml. scrape_seconds: how often it scrapes and looks at the
    rules; None leaves what prometheus.yml says.
    """

    tool = PROMETHEUS

    def __init__(
        self, targets: Iterable[str] = (), *, config: Path = CONFIG, scrape_seconds: int | None = None
    ) -> None:
        super().__init__()
        self._targets = list(targets)
        self._config = config
        self._scrape_seconds = scrape_seconds

    @property
    def url(self) -> str:
        return f"http://{address(self.ports[0])}"

    @property
    def otlp(self) -> str:
        """For OTEL_EXPORTER_OTLP_METRICS_ENDPOINT with the protocol http/protobuf."""
        return f"{self.url}/api/v1/otlp/v1/metrics"

    def arguments(self, folder: Path) -> Sequence[str]:
        config = folder / "config"
        shutil.copytree(self._config, config)
        if self._scrape_seconds is not None:
            text = (config / "prometheus.yml").read_text(encoding="utf-8")
            for name in ("scrape_interval", "scrape_timeout", "evaluation_interval"):
                before = next(line for line in text.splitlines() if line.strip().startswith(f"{name}:"))
                after = f"{before[: before.index(':')]}: {self._scrape_seconds}s"
                text = text.replace(before, after)
            (config / "prometheus.yml").write_text(text, encoding="utf-8")
        self._write_targets(folder)
        return [
            f"--config.file={config / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address(self.ports[0])}",
            *FLAGS,
        ]

    def ready(self) -> bool:
        answer = request(f"{self.url}/-/ready")
        return answer is not None and answer.status == 200

    def scrape(self, targets: Iterable[str]) -> None:
        """Scrape these addresses from now on, and no others. Prometheus sees the change by itself."""
        self._targets = list(targets)
        if self.folder is not None:
            self._write_targets(self.folder)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now: each has `metric` (labels) and `value` ([seconds, text]).

        ValueError with Prometheus' words when it refuses the expression.
        """
        data = self._get("query", {"query": expression})
        found: list[dict[str, Any]] = data["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The value of an expression with at most one sample; None when it has none."""
        found = self.query(expression)
        if len(found) > 1:
            raise ValueError(f"{expression} has {len(found)} samples, and one was expected")
        return float(found[0]["value"][1]) if found else None

    def metric_names(self) -> set[str]:
        """The names of all metrics that it has."""
        return set(self._get("label/__name__/values", {}))

    def metadata(self) -> dict[str, Any]:
        """The metric families that its targets declare (HELP, TYPE), also those without a sample."""
        found: dict[str, Any] = self._get("metadata", {})
        return found

    def exemplars(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """The exemplars of the series that an expression names, between two times in seconds."""
        found: list[dict[str, Any]] = self._get(
            "query_exemplars", {"query": expression, "start": str(start), "end": str(end)}
        )
        return found

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, with `health` (up, down, unknown) and `lastError`."""
        found: list[dict[str, Any]] = self._get("targets", {"state": "active"})["activeTargets"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with `name`, `query`, `health` (ok, err, unknown) and `lastError`."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that are pending or fire."""
        found: list[dict[str, Any]] = self._get("alerts", {})["alerts"]
        return found

    def _write_targets(self, folder: Path) -> None:
        path = folder / "config" / "targets" / "members.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob("*"):
            if other != path:
                other.unlink()  # the container's addresses
        partial = folder / "targets.partial"
        partial.write_text(json.dumps([{"targets": self._targets}]), encoding="utf-8")
        partial.replace(path)

    def _get(self, path: str, query: dict[str, str]) -> Any:
        answer = request(f"{self.url}/api/v1/{path}", query)
        if answer is None:
            raise RuntimeError(f"{self!r} does not answer")
        return _data(answer)


def _data(answer: Answer) -> Any:
    body = answer.json()
    if body["status"] != "success":
        raise ValueError(f"Prometheus refused it: {body['error']}")
    return body["data"]
