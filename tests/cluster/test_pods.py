"""The pods of the rendered chart as processes on a real Kafka: what KWOK can't play.

Rendered by Helm with users' values, started as a kubelet would start them, asked by the probes as rendered.
The broker has a listener on which members log in, so that the password takes the way that it takes in a
cluster.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.pods import Image, Node, Object, Pod
from tests.cluster.release import CHART
from tests.realkafka import KafkaCluster
from tests.realkafka.client import Record, unique_name
from tests.realkafka.members import ROOT
from tests.realkafka.secured import PASSWORD, USER, SecuredKafka
from tests.realkafka.waiting import wait_until
from tests.tools.helm import Helm
from tests.tools.program import request

pytestmark = [pytest.mark.broker, pytest.mark.cluster]

REPLICAS = 3
READ_TOKEN = "a-token-to-read-with"
ACT_TOKEN = "a-token-to-act-with"
SECRETS = {
    "credentials": {"password": PASSWORD},
    "wrong-credentials": {"password": "not-the-password"},
    "tokens": {"read": READ_TOKEN, "act": ACT_TOKEN},
}


class Chart:
    """The chart as rendered for one test, and a node that runs its pods."""

    def __init__(
        self, helm: Helm, node_folder: Path, values: dict[str, Any], secrets: dict[str, dict[str, str]]
    ) -> None:
        self.objects: list[Object] = helm.template(CHART, values=values)
        image = Image(ROOT / "Dockerfile")
        code = Path(__file__).parent / "app"
        self.node = Node(self.objects, image, node_folder, code=code, secrets=secrets)

    def template(self, kind: str, name: str = "billing-streamloop") -> Object:
        """The pod template of a Deployment or Job."""
        [found] = [e for e in self.objects if (e["kind"], e["metadata"]["name"]) == (kind, name)]
        template: Object = found["spec"]["template"]
        return template

    def start(self, name: str) -> Pod:
        """A member."""
        return self.node.start(self.template("Deployment"), name)

    def started(self, name: str) -> Pod:
        """A member that is ready."""
        pod = self.start(name)
        wait_until(lambda: pod.passes("readiness"), 60, lambda: f"{pod!r}; it says {pod.probe('readiness')}")
        return pod

    def text(self) -> str:
        """Everything that was rendered."""
        return yaml.safe_dump_all(self.objects)


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredKafka]:
    """One node, on which the user of the pods can log in."""
    with SecuredKafka() as started:
        yield started


@pytest.fixture
def kafka(broker: SecuredKafka) -> Iterator[SecuredKafka]:
    """The same, healed after a test that hurt it."""
    yield broker
    broker.heal()


@pytest.fixture
def topic(kafka: KafkaCluster, request: pytest.FixtureRequest) -> str:
    """A topic of six partitions."""
    return kafka.create_topic(6, prefix=request.node.name)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return unique_name(request.node.name)


@pytest.fixture
def render(
    helm: Helm, kafka: SecuredKafka, topic: str, group: str, tmp_path: Path
) -> Iterator[Callable[..., Chart]]:
    """Renders the chart for this test: render(credentials="credentials", values=None, timeout="5s", ..)."""
    made: list[Chart] = []

    def chart(
        *,
        credentials: str = "credentials",
        values: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Chart:
        given = {
            "app": "shop:loop",
            "replicas": REPLICAS,
            "settings": {
                "brokers": [kafka.login],
                "group": group,
                "topics": {"orders": topic},
                "security_protocol": "sasl_plaintext",
                "sasl_mechanism": "PLAIN",
                "sasl_username": USER,
                "retry_topics": ["1s"],
                "ordering": "none",
                "commit_interval": "100ms",
                **settings,
            },
            "auth": {
                "sasl": {"existingSecret": credentials},
                "tokens": {"existingSecret": "tokens", "readKey": "read", "actKey": "act"},
            },
            **(values or {}),
        }
        secrets = {**SECRETS, "certificates": {"ca.crt": kafka.authority.read_text(encoding="ascii")}}
        made.append(Chart(helm, tmp_path / f"node-{len(made) + 1}", given, secrets))
        return made[-1]

    try:
        yield chart
    finally:
        for each in made:
            each.node.end()
            print(each.node.transcript())  # shown when the test failed


def orders(*values: dict[str, Any], partition: int = 0) -> list[Record]:
    return [Record(json.dumps(value).encode(), partition=partition) for value in values]


def handled(*pods: Pod, what: str = "end") -> list[str]:
    """partition/offset of what the pods' handlers began or ended."""
    return [
        line.removeprefix(f"{what} ")
        for pod in pods
        for line in pod.member.lines
        if line.startswith(f"{what} ")
    ]


def owners(kafka: KafkaCluster, group: str) -> dict[str, set[int]]:
    """The partitions of each static member, by its name in the group."""
    [described] = kafka.admin.describe_consumer_groups([group]).values()
    return {
        str(member.group_instance_id): {part.partition for part in member.assignment.topic_partitions}
        for member in described.result(10).members
    }


def _at_least(count: int, pods: Sequence[Pod]) -> bool:
    return len(handled(*pods)) >= count


def test_H1_a_rolling_restart_in_the_order_of_kubernetes_handles_each_message_once(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str, group: str
) -> None:
    """A Deployment starts the replacement when the old pod gets its SIGTERM, not when it has ended."""
    chart = render()
    running = [chart.started(f"old-{number}") for number in range(REPLICAS)]
    pods = list(running)
    produced = 0

    def produce() -> None:
        nonlocal produced
        for partition in range(6):
            kafka.produce(topic, orders(*[{"sleep": 0.05}] * 20, partition=partition))
        produced += 120

    produce()
    wait_until(
        lambda: len(kafka.members(group)) == REPLICAS and all(handled(pod) for pod in pods),
        60,
        lambda: f"three members to consume; {kafka.members(group)}",
    )
    for number, old in enumerate(running):
        produce()
        some = len(handled(*pods)) + 1
        wait_until(partial(_at_least, some, pods), 60, "some to be handled")
        old.delete()
        replacement = chart.start(f"new-{number}")
        pods.append(replacement)
        produce()
        # maxUnavailable 1 and minReadySeconds: the next one has to wait for both.
        wait_until(partial(replacement.passes, "readiness"), 60, "the replacement to be ready")
        assert old.gone() == 0
    wait_until(
        lambda: len(set(handled(*pods))) == produced,
        120,
        lambda: f"all of {produced} to be handled; {len(set(handled(*pods)))} were",
    )
    wait_until(lambda: kafka.lag(group, topic) == 0, 30, "all to be committed")
    assert len(handled(*pods)) == produced, "some were handled twice"
    assert len(kafka.members(group)) == REPLICAS


def test_a_pod_of_a_stateful_set_comes_back_as_the_same_member_and_no_partition_moves(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str, group: str
) -> None:
    """Static membership: its name in the group is its pod's. Its successor starts when it is gone."""
    kafka.set_group_config(group, consumer_session_timeout_ms="45000")
    chart = render(values={"kind": "StatefulSet"})
    template = chart.template("StatefulSet")
    names = [f"billing-streamloop-{number}" for number in range(REPLICAS)]
    pods = [chart.node.start(template, name) for name in names]
    produced = 0

    def produce() -> None:
        nonlocal produced
        for partition in range(6):
            kafka.produce(topic, orders(*[{"sleep": 0.05}] * 5, partition=partition))
        produced += 30

    def settled() -> bool:
        owned = owners(kafka, group)
        return set(owned) == set(names) and all(len(parts) == 2 for parts in owned.values())

    wait_until(settled, 60, lambda: f"three members with two partitions each; {owners(kafka, group)}")
    produce()
    wait_until(lambda: len(handled(*pods)) == produced, 60, "the first messages")
    before = owners(kafka, group)
    pods[1].delete()
    assert pods[1].gone() == 0
    produce()
    pods.append(chart.node.start(template, names[1]))
    wait_until(lambda: len(set(handled(*pods))) == produced, 60, "all messages")
    assert owners(kafka, group) == before
    wait_until(lambda: kafka.lag(group, topic) == 0, 30, "all to be committed")
    assert len(handled(*pods)) == produced, "some were handled twice"
    assert handled(pods[-1]), "what its predecessor had was not left to it"


def test_the_probes_answer_through_start_work_and_drain(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str
) -> None:
    chart = render()
    [node] = kafka.nodes
    node.kill()
    pod = chart.start("pod-1")
    assert not pod.passes("startup"), "nothing listens as yet"
    wait_until(lambda: pod.passes("startup"), 60, "it to start")
    # Without a broker: it waits, is alive and not ready, so that a roll-out stops here.
    pod.member.wait_for_line("broker", timeout=60)
    answer = pod.probe("readiness")
    assert answer is not None
    assert (answer.status, answer.json()["reasons"]) == (503, ["waiting for the broker"])
    assert pod.passes("liveness")

    kafka.restart(node)
    wait_until(lambda: pod.passes("readiness"), 60, "it to be ready")
    kafka.produce(topic, orders({"sleep": 4}))
    wait_until(lambda: handled(pod, what="begin"), 60, "the message")
    assert pod.passes("readiness")
    assert pod.passes("liveness")

    pod.delete()
    wait_until(lambda: not pod.passes("readiness"), 30, "the drain to be seen")
    assert pod.member.running
    assert pod.passes("liveness"), "a pod that drains must not be killed by its probe"
    assert pod.gone() == 0
    assert handled(pod) == ["0/0"]


def test_H8_a_blocked_event_loop_fails_liveness_and_nothing_else_does(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str, group: str
) -> None:
    chart = render(timeout="2s", kill_after="8s")
    pod = chart.started("pod-1")
    kafka.produce(topic, orders({"do": "block"}))
    wait_until(lambda: handled(pod, what="begin"), 60, "the message")
    wait_until(lambda: not pod.passes("liveness"), 30, "liveness to fail")
    answer = pod.probe("liveness")
    assert answer is not None, "the probe is answered by a thread of its own"
    assert "blocked by handler handle" in answer.json()["reasons"][0]
    assert pod.passes("startup")
    # What the kubelet would do after failureThreshold failures: the process does it by itself, with a reason.
    assert pod.gone() == 70
    assert kafka.committed_offsets(group, topic).get(0, 0) == 0


def test_H5_a_lost_broker_fails_neither_liveness_nor_readiness(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str
) -> None:
    chart = render()
    pod = chart.started("pod-1")
    kafka.produce(topic, orders({}))
    wait_until(lambda: handled(pod) == ["0/0"], 60, "the message")
    [node] = kafka.nodes
    node.kill()
    pod.member.wait_for_line(r"(?i)connect|broker|transport", timeout=60)
    probe = chart.template("Deployment")["spec"]["containers"][0]["livenessProbe"]
    answers: list[bool] = []

    def asked_often_enough() -> bool:
        answers.append(pod.passes("liveness") and pod.passes("readiness"))
        return len(answers) > 20 * int(probe["failureThreshold"])

    wait_until(asked_often_enough, 60, "the probes to be asked")
    assert all(answers)
    kafka.restart(node)
    kafka.produce(topic, orders({}))
    wait_until(lambda: handled(pod) == ["0/0", "0/1"], 90, "it to go on")
    pod.delete()
    assert pod.gone() == 0


def test_with_wrong_credentials_a_pod_lives_and_never_gets_ready(render: Callable[..., Chart]) -> None:
    """So that a roll-out stops at the first pod (test_release.py shows that)."""
    pod = render(credentials="wrong-credentials").start("pod-1")
    wait_until(lambda: pod.passes("startup"), 60, "it to start")
    said = pod.member.wait_for_line("Authentication failed: Invalid username or password", timeout=60)
    assert "not-the-password" not in said.string
    answer = pod.probe("readiness")
    assert answer is not None
    assert answer.status == 503
    assert pod.passes("liveness")
    pod.delete()
    assert pod.gone() == 0


def test_over_tls_a_pod_trusts_the_authority_of_its_secret_and_no_other(
    render: Callable[..., Chart], kafka: SecuredKafka, topic: str
) -> None:
    tls = {"brokers": [kafka.tls], "security_protocol": "ssl"}
    login = {"sasl_mechanism": None, "sasl_username": None}
    trusted = {"auth": {"tls": {"existingSecret": "certificates"}}}
    pod = render(values=trusted, **tls, **login).started("pod-1")
    kafka.produce(topic, orders({}))
    wait_until(lambda: handled(pod) == ["0/0"], 60, "the message")
    stranger = render(values={"auth": {}}, **tls, **login).start("pod-2")
    stranger.member.wait_for_line("certificate verify failed", timeout=60)
    answer = stranger.probe("readiness")
    assert answer is not None
    assert answer.status == 503


def test_secrets_are_in_no_config_map_log_status_or_shown_settings(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str
) -> None:
    chart = render(log_level="DEBUG")
    secrets = (PASSWORD, READ_TOKEN, ACT_TOKEN)
    assert not any(secret in chart.text() for secret in secrets)

    pod = chart.started("pod-1")
    kafka.produce(topic, orders({}, {"do": "fail"}))
    wait_until(lambda: handled(pod) == ["0/0"], 60, "the message")
    status = request(f"http://127.0.0.1:{pod.port(9465)}/status")
    ready = pod.probe("readiness")
    assert status is not None
    assert ready is not None
    assert status.status == ready.status == 200

    shown = chart.node.start(
        chart.template("Deployment"), "shown", command=["streamloop", "config", "shop:loop"]
    )
    assert shown.gone() == 0
    settings = "\n".join(shown.member.lines)
    assert "sasl_password" in settings, "the setting is shown, its value is not"
    pod.delete()
    assert pod.gone() == 0
    texts = {
        "/status": status.body.decode(),
        "/ready": ready.body.decode(),
        "log": "\n".join(pod.member.lines),
        "streamloop config": settings,
    }
    leaks = [(where, secret) for where, text in texts.items() for secret in secrets if secret in text]
    assert leaks == []


def test_the_tokens_of_the_secret_are_those_that_the_control_address_takes(
    render: Callable[..., Chart],
) -> None:
    pod = render().started("pod-1")
    url = f"http://127.0.0.1:{pod.port(9465)}/pause"
    refused = request(url, post=b"{}", headers={"Content-Type": "application/json"})
    assert refused is not None
    assert refused.status in (401, 403)
    headers = {"Authorization": f"Bearer {ACT_TOKEN}", "Content-Type": "application/json"}
    taken = request(url, post=b"{}", headers=headers)
    assert taken is not None
    assert taken.status == 200, taken


def test_the_pod_of_helm_test_finds_the_topics_and_ends_well(render: Callable[..., Chart]) -> None:
    chart = render()
    pod = chart.node.start(chart.template("Job", "billing-streamloop-test"), "test")
    assert pod.member.wait(60) == 0, pod.member.lines


def test_the_hook_that_makes_topics_makes_what_is_missing_and_changes_nothing(
    render: Callable[..., Chart], kafka: KafkaCluster, topic: str
) -> None:
    missing = unique_name("missing")
    wanted = [
        {"name": missing, "create": {"partitions": 3, "config": {"retention.ms": 3_600_000}}},
        {"name": topic, "create": {"partitions": 12}},
    ]
    chart = render(values={"topicsJob": {"enabled": True}, "topics": wanted})
    pod = chart.node.start(chart.template("Job", "billing-streamloop-topics"), "topics")
    assert pod.member.wait(60) == 0, pod.member.lines
    described = kafka.admin.list_topics(timeout=10).topics
    assert {name: len(described[name].partitions) for name in (missing, topic)} == {missing: 3, topic: 6}
