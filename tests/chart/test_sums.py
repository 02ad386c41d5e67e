"""The chart's sums are streamloop's: durations, sizes, grace periods, memory, names of topics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import shutdown
from streamloop.settings import Settings
from streamloop.settings.sums import memory_needed
from streamloop.settings.units import duration, show_duration, size
from tests.chart.rendered import CHART, evaluate, member, one, values_of, with_base

if TYPE_CHECKING:
    from tests.tools.helm import Helm

DURATIONS = (
    "0",
    "7",
    "2.5",
    "1e+06",
    "500ms",
    "30s",
    "5m",
    "2h",
    "14d",
    "1h30m",
    "1m 30s",
    "0.5s",
    " 10s ",
    "1d12h",
)
SIZES = (
    "0",
    "1024",
    "1.5e+09",
    "64MiB",
    "64Mi",
    "512KiB",
    "512k",
    "1GB",
    "1G",
    "2gib",
    "10 MiB",
    "1TiB",
    "100B",
)


def test_durations_and_sizes_are_read_as_streamloop_reads_them(helm: Helm) -> None:
    found = evaluate(
        helm,
        {
            f"d{n}": f'include "streamloop.seconds" {text!r}'.replace("'", '"')
            for n, text in enumerate(DURATIONS)
        }
        | {f"s{n}": f'include "streamloop.bytes" {text!r}'.replace("'", '"') for n, text in enumerate(SIZES)},
    )
    assert [float(found[f"d{n}"]) for n in range(len(DURATIONS))] == list(map(duration, DURATIONS))
    assert [int(found[f"s{n}"]) for n in range(len(SIZES))] == list(map(size, SIZES))


def test_numbers_are_read_as_streamloop_reads_them(helm: Helm) -> None:
    numbers: list[float] = [0, 1, 2.5, 1_000_000, 12_345_678, 1_209_600.5]
    found = evaluate(
        helm,
        {
            f"n{n}": f'include "streamloop.seconds" (index .Values.extraEnv {n}).value'
            for n in range(len(numbers))
        },
        {"extraEnv": [{"name": "x", "value": number} for number in numbers]},
    )
    assert [float(found[f"n{n}"]) for n in range(len(numbers))] == numbers


@pytest.mark.parametrize(
    "seconds", [0.001, 0.5, 1, 1.5, 30, 90, 300, 3600, 5400, 86_400, 1_209_600, 1_000_000]
)
def test_a_delay_in_a_topics_name_is_written_as_streamloop_writes_it(helm: Helm, seconds: float) -> None:
    found = evaluate(helm, {"shown": f'include "streamloop.showDuration" {seconds}'})
    assert found["shown"] == show_duration(seconds)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"drain_timeout": "2m"},
        {"drain_timeout": 0, "startup_timeout": 90},
        {"drain_timeout": 12.3, "shutdown_timeout": "1m30s", "trace_flush_timeout": "500ms"},
    ],
)
@pytest.mark.parametrize("pre_stop", [0, 15])
def test_the_grace_period_and_the_time_until_ready_are_the_sum_of_all_bounds(
    helm: Helm, settings: dict[str, Any], pre_stop: int
) -> None:
    values = with_base({"settings": settings, "preStopSeconds": pre_stop})
    objects = helm.template(CHART, values=values)
    longest = shutdown.longest(Settings.load(settings, env={}).settings)
    spec = member(objects)["spec"]
    assert spec["terminationGracePeriodSeconds"] == math.ceil(pre_stop + longest.grace)
    deployment = one(objects, "Deployment")["spec"]
    assert deployment["minReadySeconds"] == math.ceil(pre_stop + longest.away)
    assert deployment["progressDeadlineSeconds"] > deployment["minReadySeconds"]


def test_the_seconds_of_a_pre_stop_that_sleeps_are_added(helm: Helm) -> None:
    def grace(values: dict[str, Any]) -> int:
        found: int = member(helm.template(CHART, values=with_base(values)))["spec"][
            "terminationGracePeriodSeconds"
        ]
        return found

    assert grace({"lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}) == grace({}) + 20


def test_the_bounds_are_those_that_the_program_has() -> None:
    settings = Settings.load({}, env={}).settings
    ending = shutdown.longest(settings)
    assert ending.left > settings.drain_timeout
    assert ending.grace > ending.ended > ending.left + settings.shutdown_timeout


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"retry_topics": []},
        {"retry_topics": "none"},
        {"retry_topics": [], "dead_letter": False},
        {"strict_order": True},
        {"strict_order": True, "dead_letter": False},
        {"dead_letter": False, "retry_topics": [], "consumers": {"charge": {"dead_letter": True}}},
        {"retry_topics": [], "consumers": {"charge": {"retry_topics": ["30s"]}}},
        {"high_watermark_bytes": "1GiB", "retry_high_watermark_bytes": 1_000_000, "prefetch_bytes": "4Mi"},
        {"producer_queue_bytes": "1MB", "kafka": {"consumer": {"fetch.max.bytes": 1_000_000}}},
        {"kafka": {"common": {"fetch.max.bytes": 2_000_000}}},
    ],
)
def test_the_memory_that_is_needed_is_the_same_sum(helm: Helm, settings: dict[str, Any]) -> None:
    found = evaluate(
        helm,
        {"needed": 'include "streamloop.memoryNeeded" .'},
        {"settings": settings, "resources": {"limits": {"memory": "8Gi"}}},
    )
    made = Settings.load(settings, env={}).settings
    own = [made.for_consumer(name) for name in [*made.consumers, "any other"]]
    reads = any(each.retry_topics or each.dead_letter for each in own)
    assert int(found["needed"]) == memory_needed(made, second_consumer=reads)


def test_keda_looks_at_every_topic_that_may_hold_messages_with_the_group_that_reads_it(helm: Helm) -> None:
    path = CHART / "ci/keda-values.yaml"
    values = values_of(path)
    triggers = one(helm.template(CHART, "-f", path), "ScaledObject")["spec"]["triggers"]
    found = [(each["metadata"]["topic"], each["metadata"]["consumerGroup"]) for each in triggers]
    settings = Settings.load(values["settings"], env={}).settings
    wanted = []
    for topic in values["topics"]:
        own = settings.for_consumer(
            topic.get("consumer", "any"),
            {"retry_topics": topic["retryTopics"]} if "retryTopics" in topic else {},
        )
        wanted.append((topic["name"], "billing"))
        replay = [own.replay_topic(topic["name"])] if own.dead_letter else []
        wanted += [(name, "billing.retry") for name in [*own.retry_topic_names(topic["name"]), *replay]]
    assert found == wanted


def test_the_triggers_of_keda_count_what_is_not_acknowledged(helm: Helm) -> None:
    spec = one(helm.template(CHART, "-f", CHART / "ci/keda-values.yaml"), "ScaledObject")["spec"]
    for trigger in spec["triggers"]:
        metadata = trigger["metadata"]
        assert metadata["excludePersistentLag"] == metadata["allowIdleConsumers"] == "false"
        assert metadata["scaleToZeroOnInvalidOffset"] == "false"
        by_partition = metadata["topic"].startswith("refunds")
        assert metadata["limitToPartitionsWithLag"] == ("true" if by_partition else "false")
        assert all(isinstance(value, str) for value in metadata.values())
    assert spec["triggers"][0]["metadata"]["lagThreshold"] == "500"


def test_keda_resets_as_streamloop_starts_and_retry_topics_from_their_beginning(helm: Helm) -> None:
    values = with_base(
        {"autoscaling": {"type": "keda"}, "topics": [{"name": "orders"}], "settings": {"start": "latest"}}
    )
    triggers = one(helm.template(CHART, values=values), "ScaledObject")["spec"]["triggers"]
    assert triggers[0]["metadata"]["offsetResetPolicy"] == "latest"
    assert {each["metadata"]["offsetResetPolicy"] for each in triggers[1:]} == {"earliest"}


def test_keda_logs_in_with_the_same_secrets(helm: Helm) -> None:
    objects = helm.template(CHART, "-f", CHART / "ci/keda-zero-sasl-values.yaml")
    scaled = one(objects, "ScaledObject")["spec"]
    assert scaled["minReplicaCount"] == 0
    authentication = one(objects, "TriggerAuthentication")
    for trigger in scaled["triggers"]:
        assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
        assert (trigger["metadata"]["sasl"], trigger["metadata"]["tls"]) == ("scram_sha512", "enable")
        assert trigger["metadata"]["bootstrapServers"] == "kafka-0:9093,kafka-1:9093"
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "password", "name": "kafka-login", "key": "password"},
        {"parameter": "username", "name": "kafka-login", "key": "username"},
        {"parameter": "ca", "name": "kafka-ca", "key": "ca.crt"},
    ]


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_who_scales_decides_the_replicas_alone(helm: Helm, name: str) -> None:
    objects = helm.template(CHART, "-f", CHART / f"ci/{name}-values.yaml")
    workload = one(objects, "Deployment")
    assert "replicas" not in workload["spec"]
    scaler = one(objects, "HorizontalPodAutoscaler" if name == "hpa" else "ScaledObject")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", workload["metadata"]["name"])
