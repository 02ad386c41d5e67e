"""Grafana's dashboards and data sources: made from code, complete, and about metrics that exist."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from stack.dashboards import FOLDER, rendered
from tests.stack.names import METRICS, ROOT, named
from tests.tools import Grafana

PROVISIONING = ROOT / "stack" / "grafana" / "provisioning"
BOARDS = sorted(rendered())


def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def expressions(name: str) -> Iterator[str]:
    for panel in panels(name):
        for target in panel["targets"]:
            yield target["expr"]


def test_the_files_are_what_the_code_makes() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert there == rendered(), "write them anew: python -m stack.dashboards"


@pytest.mark.parametrize("name", BOARDS)
def test_the_sdk_of_grafana_reads_a_dashboard_and_loses_nothing(name: str) -> None:
    read = Dashboard.from_json(board(name))
    assert json.loads(JSONEncoder().encode(read)) == board(name)


@pytest.mark.parametrize("name", BOARDS)
def test_the_strict_decoder_of_grafana_finds_nothing_wrong(name: str, grafana: Grafana) -> None:
    assert grafana.problems(FOLDER / name) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda board, _panel: board.update(titel="x"), "unexpected field 'titel'"),
        (lambda _board, panel: panel.update(title=5), "title: json: cannot unmarshal number"),
        (
            lambda _board, panel: panel["options"].update(legnd={}),
            "options.Options: unexpected field 'legnd'",
        ),
        (lambda _board, panel: panel["targets"][0].update(exprr="x"), "unexpected field 'exprr'"),
        (
            lambda _board, panel: panel["fieldConfig"]["defaults"]["custom"].update(lineWidht=1),
            "unexpected field 'lineWidht'",
        ),
    ],
)
def test_the_strict_decoder_finds_a_mistake_in_what_belongs_to_a_kind_of_panel(
    spoil: Callable[[dict[str, Any], dict[str, Any]], None], said: str, grafana: Grafana, tmp_path: Path
) -> None:
    spoilt = board(BOARDS[0])
    spoil(spoilt, next(panel for panel in spoilt["panels"] if panel["type"] == "timeseries"))
    path = tmp_path / "board.json"
    path.write_text(json.dumps(spoilt), encoding="utf-8")
    [problem] = grafana.problems(path)
    assert said in problem


@pytest.mark.parametrize("name", BOARDS)
def test_no_data_source_is_fixed(name: str) -> None:
    variables = {each["name"]: each for each in board(name)["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [panel["datasource"] for panel in panels(name)]
    sources += [target["datasource"] for panel in panels(name) for target in panel["targets"]]
    sources += [each["datasource"] for each in variables.values() if each["type"] == "query"]
    assert {source["uid"] for source in sources} == {"${datasource}"}


@pytest.mark.parametrize("name", BOARDS)
def test_each_panel_says_what_it_shows_and_in_which_unit(name: str) -> None:
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board(name)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in board(name)["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", BOARDS)
def test_dashboards_name_only_metrics_that_exist(name: str) -> None:
    unknown = {word: each for each in expressions(name) for word in named(each) - METRICS}
    assert not unknown


@pytest.mark.parametrize("name", BOARDS)
def test_each_query_is_of_the_chosen_group(name: str) -> None:
    for each in expressions(name):
        assert "$group" in each, each


def test_every_question_has_a_panel() -> None:
    titles = " / ".join(panel["title"] for name in BOARDS for panel in panels(name)).lower()
    for word in (
        "messages by outcome",
        "lag in seconds",
        "failed attempts by type",
        "retries",
        "dead letters",
        "in flight against the watermark",
        "held partitions by reason",
        "handler latency",
        "commits by result",
        "rebalances",
    ):
        assert word in titles, word


def test_the_provisioned_data_sources_are_those_that_the_stack_runs() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "datasources.yml").read_text(encoding="utf-8"))
    by_uid = {each["uid"]: each for each in sources["datasources"]}
    assert {uid: each["url"] for uid, each in by_uid.items()} == {
        "prometheus": "http://prometheus:9090",
        "jaeger": "http://jaeger:16686",
    }
    [link] = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert link["datasourceUid"] in by_uid
    scraped = yaml.safe_load((ROOT / "stack" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert by_uid["prometheus"]["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
