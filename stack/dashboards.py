"""Grafana's dashboards as code: `python -m stack.dashboards` writes grafana/dashboards/*.json.

Change them here, not in the JSON: a test compares the two. They name only metrics of docs/metrics.md, and no
data source: that is a variable of each dashboard, as are group and topic.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER: Final = Path(__file__).parent / "grafana" / "dashboards"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH: Final = 24
GROUP: Final = 'group=~"$group"'
TOPIC: Final = f'{GROUP},topic=~"$topic"'

Query = tuple[str, str]
"""PromQL and the legend of its series."""


def targets(queries: Sequence[Query], *, exemplars: bool = False, instant: bool = False) -> list[Dataquery]:
    """Queries A, B, .. of a panel."""
    found = []
    for ref, (expression, legend) in zip("ABCDEFGH", queries, strict=False):
        query = Dataquery().datasource(SOURCE).expr(expression).legend_format(legend).ref_id(ref)
        query = query.instant() if instant else query.range()
        found.append(query.exemplar(exemplars))
    return found


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    span: int = 8,
    stacked: bool = False,
    bars: bool = False,
    exemplars: bool = False,
    limits: str = "",
) -> timeseries.Panel:
    """A panel over time. limits: a regular expression of legends that are drawn as a dashed line."""
    legend = common_builders.VizLegendOptions()
    legend = legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(span)
        .height(8)
        .legend(legend)
        .tooltip(common_builders.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .show_points(VisibilityMode.NEVER)
        .line_width(1)
        .fill_opacity(40 if bars or stacked else 8)
        .draw_style(GraphDrawStyle.BARS if bars else GraphDrawStyle.LINE)
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if limits:
        dashes = {"fill": "dash", "dash": [6, 6]}
        panel = panel.override_by_regexp(
            limits,
            [
                DynamicConfigValue(id_val="custom.lineStyle", value=dashes),
                DynamicConfigValue(id_val="custom.fillOpacity", value=0),
            ],
        )
    for target in targets(queries, exemplars=exemplars):
        panel = panel.with_target(target)
    return panel


def number(
    title: str, description: str, unit: str, expression: str, *steps: tuple[float, str], span: int = 4
) -> stat.Panel:
    """One figure. steps: (from, colour), above the first, green one."""
    thresholds = [Threshold(value=None, color="green")]
    thresholds += [Threshold(value=value, color=color) for value, color in steps]
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(thresholds))
        .with_target(targets([(expression, "")], instant=True)[0])
    )


def listing(title: str, description: str, unit: str, expression: str, span: int = 12) -> table.Panel:
    """The series of an expression as they are now, one a line."""
    query = targets([(expression, "")], instant=True)[0].format(PromQueryFormat.TABLE)
    hidden = {"excludeByName": {"Time": True}}
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .with_transformation(DataTransformerConfig(id_val="organize", options=hidden))
        .with_target(query)
    )


def dashboard(uid: str, title: str, description: str) -> Dashboard:
    """An empty dashboard with its variables and its link to the other ones."""
    everything = VariableOption(text="All", value="$__all", selected=True)

    def choice(name: str, label: str, query: str) -> QueryVariable:
        return (
            QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(everything)
        )

    return (
        Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["streamloop", "kafka"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("streamloop")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["streamloop"])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(choice("group", "Group", "label_values(loop_assigned_partitions, group)"))
        .with_variable(
            choice("topic", "Topic", 'label_values(loop_assigned_partitions{group=~"$group"}, topic)')
        )
    )


def rate(metric: str, by: str, selector: str = TOPIC) -> str:
    """A counter's rate, summed over members."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str, selector: str = GROUP) -> str:
    """A quantile of a histogram, over members."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', f'{by}, le', selector)})"


def group_dashboard() -> Dashboard:
    """What a group does: throughput, lag, failures, latency."""
    failures = rate("loop_failed_total", "group, consumer")
    successes = rate("loop_processed_total", "group, consumer", f'{TOPIC},outcome=~"acked|skipped"')
    failed = f"{failures} / ({failures} + {successes})"
    board = dashboard(
        "streamloop-group", "streamloop: group", "Is it healthy, and what does it do? All members together."
    )
    return (
        board.with_row(Row("Now"))
        .with_panel(
            number(
                "Members",
                "Members that are scraped.",
                "none",
                f"count(loop_build_info{{{GROUP}}}) or vector(0)",
            )
        )
        .with_panel(
            number(
                "Handled",
                "Messages that reached an outcome, a second.",
                "mps",
                f"sum(rate(loop_processed_total{{{TOPIC}}}[$__rate_interval]))",
            )
        )
        .with_panel(
            number(
                "Lag",
                "Age of the oldest message that is not acknowledged; the delay that users see.",
                "s",
                f"max(loop_lag_seconds{{{TOPIC}}})",
                (60, "orange"),
                (300, "red"),
            )
        )
        .with_panel(
            number(
                "Failed attempts",
                "Share of all attempts, the consumer that is worst.",
                "percentunit",
                f"max({failed})",
                (0.01, "orange"),
                (0.05, "red"),
                span=3,
            )
        )
        .with_panel(
            number(
                "New dead letters",
                "In the chosen time. Each is a message that was not handled.",
                "none",
                f"sum(increase(loop_dead_letter_total{{{TOPIC}}}[$__range]))",
                (0.5, "red"),
                span=3,
            )
        )
        .with_panel(
            number(
                "Open dead letters",
                "Neither replayed nor purged: `streamloop dlq ls` groups them. One member counts them.",
                "none",
                f"sum(max by (group, topic) (loop_dead_letters_open{{{TOPIC}}}))",
                (0.5, "orange"),
                span=3,
            )
        )
        .with_panel(
            number(
                "Held partitions",
                "Partitions that take no new messages now, those of retry topics that are not due left out.",
                "none",
                f'sum(loop_held_partitions{{{GROUP},reason!="retry_not_due"}})',
                (1, "orange"),
                span=3,
            )
        )
        .with_row(Row("Throughput"))
        .with_panel(
            graph(
                "Messages by outcome",
                "acked and skipped are done; retried and dead_lettered: a topic has them.",
                "mps",
                (rate("loop_processed_total", "topic, outcome"), "{{topic}} {{outcome}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Received from Kafka",
                "Messages that members fetched, repeated ones included.",
                "mps",
                (
                    rate(
                        "messaging_client_consumed_messages_total",
                        "messaging_destination_name",
                        'messaging_consumer_group_name=~"$group(.retry)?"',
                    ),
                    "{{messaging_destination_name}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Redelivered",
                "Messages that came again. A few belong to a rebalance; steady growth does not.",
                "mps",
                (rate("loop_redelivered_total", "topic"), "{{topic}}"),
            )
        )
        .with_row(Row("Lag"))
        .with_panel(
            graph(
                "Lag in seconds",
                "Age of the oldest message that is not acknowledged; in a retry topic since it was due.",
                "s",
                (f"max by (topic) (loop_lag_seconds{{{TOPIC}}})", "{{topic}}"),
            )
        )
        .with_panel(
            graph(
                "Lag in messages",
                "Offsets from the commit position to the end, as Kafka's own tools show it.",
                "short",
                (f"sum by (topic) (loop_lag_messages{{{TOPIC}}})", "{{topic}}"),
            )
        )
        .with_panel(
            graph(
                "Backlog by state",
                "What is still to be handled: buffered in members, waiting for a retry, in the broker.",
                "short",
                (f"sum by (state) (loop_backlog{{{TOPIC}}})", "{{state}}"),
                stacked=True,
            )
        )
        .with_row(Row("Failures, retries and dead letters"))
        .with_panel(
            graph(
                "Failed attempts by type",
                "The error's class. A rise after a deploy: roll back; of one dependency: mend it.",
                "ops",
                (rate("loop_failed_total", "type"), "{{type}}"),
                stacked=True,
                span=6,
            )
        )
        .with_panel(
            graph(
                "Share of attempts that fail",
                "An alert fires above 5 %.",
                "percentunit",
                (failed, "{{consumer}}"),
                span=6,
            )
        )
        .with_panel(
            graph(
                "Retries",
                "Scheduled in place, and sent to a retry topic.",
                "mps",
                (rate("loop_retried_total", "topic"), "{{topic}}"),
                span=6,
            )
        )
        .with_panel(
            graph(
                "New dead letters",
                "Their headers have the reason; `streamloop trace` shows the life of one.",
                "short",
                (
                    f"sum by (topic) (increase(loop_dead_letter_total{{{TOPIC}}}[$__rate_interval]))",
                    "{{topic}}",
                ),
                bars=True,
                span=6,
            )
        )
        .with_panel(
            graph(
                "Open dead letters",
                "Those that wait for a decision. They go down when they are replayed or purged.",
                "short",
                (f"max by (topic) (loop_dead_letters_open{{{TOPIC}}})", "{{topic}}"),
                span=12,
            )
        )
        .with_panel(
            graph(
                "Oldest open dead letter",
                "How long it has waited for a decision.",
                "s",
                (f"max by (topic) (loop_dead_letters_oldest_seconds{{{TOPIC}}})", "{{topic}}"),
                span=12,
            )
        )
        .with_row(Row("Handlers"))
        .with_panel(
            graph(
                "Handler latency",
                "Failed attempts included. A dot is one message: a click opens its trace.",
                "s",
                *(
                    (
                        quantile(share, "loop_processing_duration_seconds", "consumer"),
                        f"{{{{consumer}}}} {name}",
                    )
                    for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
                ),
                exemplars=True,
                span=12,
            )
        )
        .with_panel(
            graph(
                "Running handlers",
                "At the limit with lag: handlers are what limits; raise concurrency or speed them up.",
                "short",
                (f"sum by (consumer) (loop_running_handlers{{{GROUP}}})", "{{consumer}} running"),
                (f"sum by (consumer) (loop_concurrency{{{GROUP}}})", "{{consumer}} limit"),
                limits="/limit$/",
                span=6,
            )
        )
        .with_panel(
            graph(
                "Dependency breaker",
                "0 closed, 1 open (a dependency is away, partitions are held), 2 one message probes it.",
                "none",
                (f"max by (consumer) (loop_breaker_state{{{GROUP}}})", "{{consumer}}"),
                span=6,
            )
        )
    )


def members_dashboard() -> Dashboard:
    """What each member does and what holds it back."""
    board = dashboard(
        "streamloop-members", "streamloop: members", "What holds a member back? Each member by itself."
    )
    return (
        board.with_row(Row("Holding back"))
        .with_panel(
            graph(
                "In flight against the watermark",
                "Messages in a member, not acknowledged. At the watermark it takes no more.",
                "short",
                (f"sum by (instance, consumer) (loop_inflight{{{GROUP}}})", "{{instance}} {{consumer}}"),
                (f"max by (consumer) (loop_high_watermark_messages{{{GROUP}}})", "{{consumer}} watermark"),
                limits="/watermark$/",
            )
        )
        .with_panel(
            graph(
                "In flight against the watermark, bytes",
                "The same in bytes.",
                "bytes",
                (
                    f"sum by (instance, consumer) (loop_inflight_bytes{{{GROUP}}})",
                    "{{instance}} {{consumer}}",
                ),
                (f"max by (consumer) (loop_high_watermark_bytes{{{GROUP}}})", "{{consumer}} watermark"),
                limits="/watermark$/",
            )
        )
        .with_panel(
            graph(
                "Held partitions by reason",
                "docs/operations.md says for each reason what to do.",
                "short",
                (f"sum by (reason) (loop_held_partitions{{{GROUP}}}) > 0", "{{reason}}"),
                stacked=True,
            )
        )
        .with_panel(
            listing(
                "Held now",
                "Partitions that take no new messages, why, and for how long.",
                "s",
                f"max by (group, topic, partition, reason) (loop_held_seconds{{{TOPIC}}})",
            )
        )
        .with_panel(
            graph(
                "Commit gap",
                "Offsets from the commit position to the highest received. Large: one message holds it.",
                "short",
                (f"max by (topic, partition) (loop_commit_gap{{{TOPIC}}}) > 0", "{{topic}} {{partition}}"),
                span=12,
            )
        )
        .with_row(Row("Commits"))
        .with_panel(
            graph(
                "Commits by result",
                "ok; error is tried again; refused is held; rebalance is kept; stale is dropped.",
                "ops",
                (rate("loop_commits_total", "result", GROUP), "{{result}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Time since the last commit",
                "Long while messages are handled: commits do not get through.",
                "s",
                (
                    f"time() - max by (instance, consumer) (loop_last_commit_timestamp_seconds{{{GROUP}}})",
                    "{{instance}} {{consumer}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Publishing",
                "Records that wait for the broker's confirmation, and sends that failed and are tried again.",
                "short",
                (f"sum by (instance) (loop_publishes_outstanding{{{GROUP}}})", "{{instance}} outstanding"),
                (rate("loop_publish_failures_total", "instance", GROUP), "{{instance}} failures/s"),
            )
        )
        .with_row(Row("The group"))
        .with_panel(
            graph(
                "Partitions of each member",
                "The sum below the number of partitions: partitions that nobody reads.",
                "short",
                (f"sum by (instance) (loop_assigned_partitions{{{TOPIC}}})", "{{instance}}"),
                (f"sum(max by (group, topic) (loop_topic_partitions{{{TOPIC}}}))", "all"),
                limits="/^all$/",
            )
        )
        .with_panel(
            graph(
                "Rebalances",
                "assigned and revoked come with every member that comes or goes; lost: a member stood still.",
                "short",
                (
                    f"sum by (event) (increase(loop_rebalances_total{{{GROUP}}}[$__rate_interval]))",
                    "{{event}}",
                ),
                bars=True,
            )
        )
        .with_panel(
            listing(
                "Versions",
                "More than one of them: a rollout is under way, or stuck.",
                "none",
                f"count by (group, version, python, librdkafka) (loop_build_info{{{GROUP}}})",
                span=8,
            )
        )
        .with_row(Row("The machinery"))
        .with_panel(
            graph(
                "Event loop's heartbeat",
                "Above 2 s: a handler blocks the event loop; the log has its name and stack.",
                "s",
                (f"max by (instance) (loop_heartbeat_age_seconds{{{GROUP}}})", "{{instance}}"),
                span=6,
            )
        )
        .with_panel(
            graph(
                "Turns of the engine",
                "p99 of a turn; above 50 ms: very large batches, or too little CPU.",
                "s",
                (quantile(0.99, "loop_iteration_duration_seconds", "instance"), "{{instance}} p99"),
                span=6,
            )
        )
        .with_panel(
            graph(
                "Errors that are not a handler's",
                "Of the Kafka clients by librdkafka's name, and those of the loop itself.",
                "ops",
                (rate("loop_errors_total", "type", GROUP), "{{type}}"),
                span=6,
            )
        )
        .with_panel(
            graph(
                "Exports that failed",
                "The collector is away or refuses. Handling is not affected.",
                "ops",
                (rate("loop_export_failures_total", "signal", GROUP), "{{signal}}"),
                span=6,
            )
        )
    )


def rendered() -> dict[str, str]:
    """File names and contents."""
    found = {}
    for builder in (group_dashboard(), members_dashboard()):
        board = builder.build()
        for number_of_panel, panel in enumerate(board.panels or (), 1):
            panel.id_val = number_of_panel
        found[f"{board.uid}.json"] = JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n"
    return found


def main() -> int:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{FOLDER / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
