"""What the chart renders: for every feature valid, safe, and what streamloop itself understands."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, get_args

import click
import kubernetes_validate
import pytest
import yaml

from streamloop.cli.main import main as command_line
from streamloop.settings import Severity, check_sums
from streamloop.settings.model import Settings, is_secret
from streamloop.settings.units import size
from tests.chart.rendered import (
    BASE,
    CHART,
    CI_VALUES,
    SIZES,
    Object,
    config_text,
    container,
    is_hook,
    kinds,
    loaded,
    member,
    one,
    pod_templates,
    values_of,
    with_base,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tools.helm import Helm

EACH = pytest.mark.parametrize("path", [*CI_VALUES, *SIZES], ids=lambda path: path.stem)
SCHEMAS = ("1.30", "1.37")
"""The oldest version that Chart.yaml allows, and the newest one known here."""


@EACH
def test_helm_lints_it_strictly(helm: Helm, path: Path) -> None:
    helm.run("lint", "--strict", CHART, "-f", path)


def test_helm_lints_the_defaults(helm: Helm) -> None:
    helm.run("lint", "--strict", CHART)


@EACH
@pytest.mark.parametrize("version", SCHEMAS)
def test_every_object_is_valid_in_two_versions_of_kubernetes(helm: Helm, path: Path, version: str) -> None:
    for made in helm.template(CHART, "-f", path, "--kube-version", version):
        if made["apiVersion"].split("/")[0] not in ("keda.sh", "monitoring.coreos.com"):  # see tests/cluster
            kubernetes_validate.validate(made, version, strict=True)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    refused = helm.process("template", "x", CHART, "--kube-version", "1.29")
    assert refused.returncode != 0
    assert "1.30" in refused.stderr


@EACH
def test_no_two_objects_have_one_name(helm: Helm, path: Path) -> None:
    names = [(made["kind"], made["metadata"]["name"]) for made in helm.template(CHART, "-f", path)]
    assert len(names) == len(set(names))


@EACH
def test_every_pod_runs_under_the_restricted_profile_without_a_token(helm: Helm, path: Path) -> None:
    templates = list(pod_templates(helm.template(CHART, "-f", path)))
    assert templates
    for name, template in templates:
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] == 10001, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        own = spec["containers"][0]
        assert own["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        mounts = {each["name"]: each for each in own["volumeMounts"]}
        [tmp] = [each for each in spec["volumes"] if each["name"] == "tmp"]
        assert mounts["tmp"]["mountPath"] == "/tmp"
        assert "sizeLimit" in tmp["emptyDir"], name
        assert all(each.get("readOnly") for each in mounts.values() if each["name"] != "tmp"), name


@EACH
def test_every_mount_has_its_volume_and_every_volume_of_ours_is_mounted(helm: Helm, path: Path) -> None:
    for name, template in pod_templates(helm.template(CHART, "-f", path)):
        volumes = {each["name"] for each in template["spec"]["volumes"]}
        mounts = {each["name"] for each in template["spec"]["containers"][0]["volumeMounts"]}
        assert volumes == mounts, name


@EACH
def test_streamloop_reads_the_settings_file_and_its_sums_add_up(
    helm: Helm, path: Path, tmp_path: Path
) -> None:
    objects = helm.template(CHART, "-f", path)
    settings = loaded(objects, tmp_path).settings
    limit = size(container(objects)["resources"]["limits"]["memory"])
    own = [settings.for_consumer(name) for name in settings.consumers or ["charge"]]
    wrong = check_sums(settings, own, lambda: limit)
    assert [str(each) for each in wrong if each.severity is Severity.ERROR] == []
    if path in SIZES:
        assert [str(each) for each in wrong] == []
    # The time that it may take is the pod's, without what a preStop takes of it.
    assert settings.termination_grace is not None
    stop = member(objects)["spec"]["terminationGracePeriodSeconds"]
    assert stop - settings.termination_grace == (10 if path.stem == "pre-stop-values" else 0)


@EACH
def test_the_command_lines_are_the_command_lines_of_streamloop(helm: Helm, path: Path) -> None:
    for name, template in pod_templates(helm.template(CHART, "-f", path)):
        word, *rest = template["spec"]["containers"][0]["args"]
        command = command_line.commands[word]
        with click.Context(command) as context:
            values, left, _ = command.make_parser(context).parse_args(list(rest))
        assert left == [], name
        assert values["target"] is None or ":" in values["target"], name


def different(name: str, rng: random.Random) -> Any:
    """A value for a setting that is not its default, as YAML has it."""
    field = Settings.model_fields[name]
    fixed: dict[str, Any] = {
        "brokers": ["kafka-0:9092", "kafka-1:9092"],
        "topics": {"orders": "orders-v2"},
        "start": 1769846400000,
        "retry_topics": [1.5, 1_000_000, "12h"],
        "retry_topic_name": "{topic}.{group}.again.{delay}",
        "dead_letter_topic_name": "{topic}.{group}.dead",
        "replay_topic_name": "{topic}.{group}.once-more",
        "control_topic_name": "{group}.talk",
        "ops_address": "0.0.0.0:9999",
        "control_address": "127.0.0.1:9998",
        "jaeger_url": "http://jaeger:16686",
        "jaeger_link": "https://jaeger.example.com",
        "control_hosts": ["ops.example.com"],
        "security_protocol": "sasl_ssl",
        "termination_grace": "30s",
        "memory_limit": "256MiB",
        "high_watermark_bytes": 100_000_001,
        "retry_high_watermark_bytes": 100_000_003,
        "retry_topic_retention": 3_000_000,
        "low_watermark": 0.25,
        "backoff_share": 0.125,
        "trace_sample_ratio": 0.000001,
    }
    if name in fixed:
        return fixed[name]
    schema = Settings.model_json_schema()["properties"][name]
    choices: list[Any] = schema.get("enum") or next(
        (each["enum"] for each in schema.get("anyOf", []) if "enum" in each), []
    )
    if choices:
        return next(each for each in choices if each != field.default and not isinstance(each, bool))
    if isinstance(field.default, bool):
        return not field.default
    kinds_ = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", []))}
    if "integer" in kinds_ and bool not in get_args(field.annotation):
        return rng.randint(1_000_001, 9_999_999) if schema.get("maximum", 10**9) >= 10**7 else 1_001
    return 2.5 if "number" in kinds_ else f"a-{name}"


def test_every_setting_of_the_model_is_a_value_and_arrives_as_it_was_given(
    helm: Helm, tmp_path: Path
) -> None:
    rng = random.Random(6)
    names = [
        name
        for name in Settings.model_fields
        if not is_secret((name,))
        and name not in ("kafka", "consumers", "member")
        and not name.endswith("_file")
    ]
    given: dict[str, Any] = {name: different(name, rng) for name in names}
    given["kafka"] = {
        "consumer": {"max.poll.interval.ms": 3_600_000, "check.crcs": True},
        "common": {"client.rack": "0001", "socket.keepalive.enable": False},
    }
    given["consumers"] = {"charge": {"concurrency": 1001, "max_attempts": 2_000_000, "retry_topics": []}}
    # Numbers as text, since 1e+06 must not come out of anything.
    objects = helm.template(CHART, values={"settings": given, "resources": {"limits": {"memory": "4Gi"}}})
    # PyYAML takes 1e-06 for a text; streamloop takes it for the number that it is, as below.
    text = config_text(objects).replace("1e-06", "0.000001")
    assert yaml.safe_load(text) == given
    wanted = Settings.load(given, env={}).settings
    found = loaded(objects, tmp_path).settings
    for name in names:
        assert getattr(found, name) == getattr(wanted, name), name
        assert getattr(found, name) != Settings.model_fields[name].default, f"{name}: not another value"
    assert found.kafka == wanted.kafka
    assert found.consumers == wanted.consumers


def test_numbers_of_a_million_and_more_survive_set_on_the_command_line_too(helm: Helm) -> None:
    objects = helm.template(
        CHART,
        *("--set", "settings.group=billing,settings.high_watermark_messages=1000000"),
        *("--set", "replicas=1000000,job.activeDeadlineSeconds=1000000,kind=Job,bounds.maxMessages=12345678"),
        *("--set", "job.ttlSecondsAfterFinished=2000000"),
    )
    assert "high_watermark_messages: 1000000\n" in config_text(objects)
    spec = one(objects, "Job")["spec"]
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (1_000_000, 2_000_000)
    assert "12345678" in container(objects)["args"]


def test_other_settings_roll_the_pods_and_the_same_ones_do_not(helm: Helm) -> None:
    def checksum(values: Object) -> str:
        found: str = member(helm.template(CHART, values=with_base(values)))["metadata"]["annotations"][
            "checksum/config"
        ]
        return found

    first = checksum({})
    assert checksum({}) == first
    assert checksum({"settings": {"concurrency": 101}}) != first
    assert checksum({"replicas": 7}) == first


def test_selectors_are_name_and_instance_and_nothing_that_may_change(helm: Helm) -> None:
    objects = helm.template(CHART, "-f", CHART / "ci/code-volume-values.yaml")
    wanted = {"app.kubernetes.io/name": "streamloop", "app.kubernetes.io/instance": "billing"}
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert one(objects, kind)["spec"]["selector"] == {"matchLabels": wanted}
    assert one(objects, "NetworkPolicy")["spec"]["podSelector"] == {"matchLabels": wanted}
    assert wanted.items() <= member(objects)["metadata"]["labels"].items()
    # The pods of hooks are no members: neither budget nor policy may count them.
    for made in objects:
        if is_hook(made) and made["kind"] == "Job":
            labels = made["spec"]["template"]["metadata"]["labels"]
            assert labels["app.kubernetes.io/name"] != "streamloop"


def test_a_release_without_options_has_these_objects(helm: Helm) -> None:
    objects = helm.template(CHART, values=BASE)
    assert kinds(objects) == [
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ServiceAccount",
    ]
    spec = one(objects, "Deployment")["spec"]
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert "lifecycle" not in container(objects)
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": 9464, "protocol": "TCP"}]}]


def test_the_probes_are_those_of_the_ops_server_with_time_to_answer(helm: Helm) -> None:
    own = container(helm.template(CHART, values=with_base({"settings": {"ops_address": "[::]:9700"}})))
    assert {"name": "ops", "containerPort": 9700, "protocol": "TCP"} in own["ports"]
    for kind, path in (("startup", "/startup"), ("readiness", "/ready"), ("liveness", "/live")):
        assert own[f"{kind}Probe"]["httpGet"] == {"path": path, "port": "ops"}
        assert own[f"{kind}Probe"]["timeoutSeconds"] == 5


def test_probes_can_be_changed_field_by_field(helm: Helm) -> None:
    values = with_base({"probes": {"liveness": {"failureThreshold": 9, "timeoutSeconds": 7}}})
    probe = container(helm.template(CHART, values=values))["livenessProbe"]
    assert (probe["failureThreshold"], probe["timeoutSeconds"], probe["periodSeconds"]) == (9, 7, 10)
    off = with_base({"probes": {"enabled": False}})
    assert not [name for name in container(helm.template(CHART, values=off)) if name.endswith("Probe")]


def test_static_membership_gives_each_pod_its_name_in_the_group(helm: Helm) -> None:
    objects = helm.template(CHART, "-f", CHART / "ci/statefulset-values.yaml")
    spec = one(objects, "StatefulSet")["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["serviceName"] == one(objects, "Service")["metadata"]["name"]
    own = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert {"name": "STREAMLOOP_KAFKA__CONSUMER__GROUP_INSTANCE_ID", **own} in container(objects)["env"]
    # The variable is that property, as streamloop reads it.
    settings = Settings.load(env={"STREAMLOOP_KAFKA__CONSUMER__GROUP_INSTANCE_ID": "billing-0"}).settings
    assert settings.kafka.consumer == {"group.instance.id": "billing-0"}


def test_a_member_of_a_stateful_set_is_not_warned_of_its_static_membership(
    helm: Helm, tmp_path: Path
) -> None:
    settings = loaded(helm.template(CHART, "-f", CHART / "ci/statefulset-values.yaml"), tmp_path).settings

    def warned(member: str, instance: str) -> bool:
        given = {"STREAMLOOP_MEMBER": member, "STREAMLOOP_KAFKA__CONSUMER__GROUP_INSTANCE_ID": instance}
        made = Settings.load(env=given, yaml_path=tmp_path / "streamloop.yaml").settings
        found = check_sums(made, [], lambda: None)
        return "kafka.consumer.group.instance.id" in {each.setting for each in found}

    assert settings.group_protocol == "classic"
    assert not warned("billing-streamloop-0", "billing-streamloop-0")
    assert warned("billing-streamloop-5c5b6d7f9b-x2x9z", "billing-streamloop-5c5b6d7f9b-x2x9z")
    assert warned("billing-streamloop-1", "billing-streamloop-0")


def test_recreate_takes_no_fields_of_a_rolling_update(helm: Helm) -> None:
    values = with_base({"strategy": {"type": "Recreate"}})
    assert one(helm.template(CHART, values=values), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_without_static_membership_a_statefulset_names_nobody(helm: Helm) -> None:
    values = with_base({"kind": "StatefulSet", "statefulSet": {"staticMembership": False}})
    assert "INSTANCE_ID" not in str(container(helm.template(CHART, values=values)))


def test_each_member_is_called_as_its_pod(helm: Helm) -> None:
    own = container(helm.template(CHART, values=BASE))
    field = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert {"name": "STREAMLOOP_MEMBER", "valueFrom": field} in own["env"]


def test_a_bounded_job_ends_by_itself_and_each_revision_has_its_own(helm: Helm) -> None:
    objects = helm.template(CHART, "-f", CHART / "ci/job-values.yaml")
    job = one(objects, "Job")
    assert job["metadata"]["name"] == "billing-streamloop-1"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert container(objects)["args"] == [
        *("run", "app:loop", "--until-end", "--max-messages", "5000000", "--max-runtime", "1h"),
    ]
    # Exit code 2 is bad configuration, which another try does not mend.
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2]
    assert "PodDisruptionBudget" not in kinds(objects)


def test_a_late_run_of_a_cron_job_does_not_run_beside_the_next(helm: Helm) -> None:
    spec = one(helm.template(CHART, "-f", CHART / "ci/cronjob-values.yaml"), "CronJob")["spec"]
    assert (spec["concurrencyPolicy"], spec["schedule"]) == ("Forbid", "30 2 * * 1-5")


def test_every_extra_of_the_users_is_there_as_it_was_given(helm: Helm) -> None:
    path = CHART / "ci/code-volume-values.yaml"
    given = values_of(path)
    objects = helm.template(CHART, "-f", path)
    template = member(objects)
    spec, own = template["spec"], container(objects)
    assert own["image"] == f"registry.example.com/platform/streamloop@{given['image']['digest']}"
    assert own["args"] == ["run", "service:loop"]
    assert own["workingDir"] == "/code"
    for name in ("priorityClassName", "nodeSelector", "tolerations", "affinity", "hostAliases", "dnsConfig"):
        assert spec[name] == given[name], name
    assert spec["imagePullSecrets"] == given["imagePullSecrets"]
    assert spec["initContainers"] == given["initContainers"]
    assert spec["containers"][1:] == given["extraContainers"]
    assert all(each in spec["volumes"] for each in given["extraVolumes"])
    assert all(each in own["volumeMounts"] for each in given["extraVolumeMounts"])
    assert all(each in own["env"] for each in given["extraEnv"])
    assert own["envFrom"] == given["extraEnvFrom"]
    [spread] = spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "billing"}
    assert given["podLabels"].items() <= template["metadata"]["labels"].items()
    assert given["podAnnotations"].items() <= template["metadata"]["annotations"].items()
    account = one(objects, "ServiceAccount")["metadata"]["annotations"]
    assert given["serviceAccount"]["annotations"].items() <= account.items()
    for made in objects:
        if made["metadata"]["name"] not in ("billing-code", "billing-consumer-extra"):
            assert made["metadata"]["labels"]["team"] == "billing", made["metadata"]["name"]
            assert made["metadata"]["annotations"]["example.com/owner"] == "billing"
    extra = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    assert extra["billing-consumer-extra"]["data"] == {"release": "billing"}
    assert 'StreamLoop("billing")' in extra["billing-code"]["data"]["service.py"]


def test_the_notes_say_what_to_look_at_next(helm: Helm) -> None:
    values = yaml.safe_dump(with_base({"replicas": 1}))
    said = helm.run("install", "billing", CHART, "--dry-run=client", "-f", "-", stdin=values)
    notes = said.partition("NOTES:")[2]
    for line in (
        "kubectl -n default rollout status deployment/billing-streamloop",
        "kubectl -n default port-forward deployment/billing-streamloop 9465:9465",
        "helm -n default test billing",
        "- replicas is 1: while its pod restarts, nothing is consumed.",
        "- Nobody collects metrics",
    ):
        assert line in notes, line


def test_the_hook_of_helm_test_is_a_job_that_looks_from_inside(helm: Helm) -> None:
    [check] = [each for each in helm.template(CHART, values=BASE) if is_hook(each)]
    assert (check["kind"], check["metadata"]["annotations"]["helm.sh/hook"]) == ("Job", "test")
    assert check["spec"]["template"]["spec"]["containers"][0]["args"] == ["doctor", "app:loop"]


def test_before_the_release_nothing_of_it_is_needed(helm: Helm) -> None:
    path = CHART / "ci/topics-job-values.yaml"
    hooks = [
        each
        for each in helm.template(CHART, "-f", path)
        if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-install,pre-upgrade"
    ]
    weights = {each["kind"]: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in hooks}
    assert weights["ConfigMap"] < weights["Job"]
    [job] = [each for each in hooks if each["kind"] == "Job"]
    [own] = [each for each in hooks if each["kind"] == "ConfigMap"]
    spec = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in spec
    assert [each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each] == [
        own["metadata"]["name"]
    ]
    given = [each for each in values_of(path)["topics"] if "create" in each]
    assert yaml.safe_load(own["data"]["topics.yaml"]) == {
        "topics": [{"name": each["name"], **each["create"]} for each in given]
    }
