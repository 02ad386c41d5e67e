"""Values that can't work are refused before anything is installed, in words that say what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from streamloop import shutdown
from streamloop.settings import Settings
from tests.chart.rendered import CHART, with_base
from tests.tools.helm import HelmError

if TYPE_CHECKING:
    from tests.tools.helm import Helm

SECRET = "hunter2-very-secret-indeed"


def refusal(helm: Helm, values: dict[str, Any]) -> str:
    with pytest.raises(HelmError) as refused:
        helm.template(CHART, values=with_base(values))
    return str(refused.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"settings": {"brokrs": ["x"]}}, "at '/settings': additional properties 'brokrs' not allowed"),
        ({"settings": {"concurrency": "many"}}, "at '/settings/concurrency': got string, want integer"),
        ({"settings": {"concurrency": 0}}, "at '/settings/concurrency': minimum: got 0, want 1"),
        ({"settings": {"timeout": "soon"}}, "at '/settings/timeout'"),
        ({"settings": {"ordering": "random"}}, "value must be one of 'key', 'partition', 'none'"),
        (
            {"settings": {"consumers": {"charge": {"group": "x"}}}},
            "additional properties 'group' not allowed",
        ),
        ({"setings": {}}, "additional properties 'setings' not allowed"),
        ({"replicas": "3"}, "at '/replicas': got string, want integer"),
        ({"kind": "DaemonSet"}, "at '/kind': value must be one of 'Deployment'"),
        ({"app": "app.py"}, "at '/app': 'app.py' does not match pattern"),
        ({"topics": ["orders"]}, "at '/topics/0': got string, want object"),
        ({"topics": [{"consumer": "x"}]}, "missing property 'name'"),
        ({"auth": {"sasl": {"password": SECRET}}}, "additional properties 'password' not allowed"),
    ],
    ids=str,
)
def test_the_schema_names_the_value_and_what_it_has_to_be(
    helm: Helm, values: dict[str, Any], said: str
) -> None:
    found = refusal(helm, values)
    assert said in found
    assert SECRET not in found


ENDING = shutdown.longest(Settings.load({}, env={}).settings)
GRACE, AWAY = ENDING.grace, ENDING.away
SASL = {"auth": {"sasl": {"existingSecret": "login"}}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"terminationGracePeriodSeconds": 30},
            f"terminationGracePeriodSeconds is 30 but a pod may need {GRACE:g} s to end",
        ),
        (
            {"settings": {"drain_timeout": "2m"}, "terminationGracePeriodSeconds": 120},
            f"set it to at least {GRACE + 95:g}",
        ),
        ({"minReadySeconds": 24}, "minReadySeconds is 24 but a pod drains for up to 25 s"),
        (
            {"preStopSeconds": 10, "minReadySeconds": 30},
            "minReadySeconds is 30 but a pod drains for up to 35 s",
        ),
        (
            {"progressDeadlineSeconds": int(AWAY)},
            f"progressDeadlineSeconds is {AWAY:g}, not more than minReadySeconds ({AWAY:g})",
        ),
        (
            {"settings": {"termination_grace": "2m"}},
            f"settings.termination_grace is 2m but the pod has {GRACE:g} s",
        ),
        ({"settings": {"ops_address": "127.0.0.1:9464"}}, "can't reach it. Set it to 0.0.0.0:9464"),
        ({"settings": {"ops_address": "none"}}, "probes and metrics need an address with a port"),
        ({"settings": {"ops_address": "0.0.0.0:0"}}, "probes and metrics need an address with a port"),
        (
            {"controlService": {"enabled": True}},
            'settings.control_address is "127.0.0.1:9465", which no Service',
        ),
        ({"settings": {"member": "me"}}, "settings.member would give all pods one name"),
        (
            {"resources": {"limits": {"memory": "128Mi"}}},
            "allow 128 MiB of messages but resources.limits.memory is 128Mi",
        ),
        (
            {"settings": {"memory_limit": "1GiB"}},
            "settings.memory_limit is 1GiB but resources.limits.memory is 512Mi",
        ),
        (SASL, "settings.security_protocol is not set: the password would not be used"),
        (
            {"auth": {"tls": {"existingSecret": "ca"}}, "settings": {"security_protocol": "sasl_plaintext"}},
            "settings.security_protocol is sasl_plaintext: the connection would not be encrypted",
        ),
        ({"auth": {"tls": {"certKey": "tls.crt"}}}, "auth.tls.certKey and auth.tls.keyKey belong together"),
        ({"auth": {"tokens": {"existingSecret": "t"}}}, "without auth.tokens.readKey or auth.tokens.actKey"),
        (
            {**SASL, "settings": {"security_protocol": "sasl_ssl", "sasl_password_file": "/x"}},
            "both give the password",
        ),
        ({"autoscaling": {"type": "hpa", "minReplicas": 0}}, "which an HPA can't do"),
        ({"autoscaling": {"type": "hpa", "minReplicas": 11}}, "minReplicas (11) is more than"),
        ({"autoscaling": {"type": "hpa", "hpa": {"cpuUtilization": None}}}, "without autoscaling.hpa"),
        ({"autoscaling": {"type": "keda"}}, "topics is empty: list the source topics"),
        (
            {"autoscaling": {"type": "keda"}, "topics": [{"name": "orders"}], "settings": {"group": ""}},
            "which needs settings.brokers and settings.group",
        ),
        (
            {
                "autoscaling": {"type": "keda", "minReplicas": 0, "keda": {"retryTriggers": False}},
                "topics": [{"name": "orders"}],
            },
            "messages that wait there would wait for ever",
        ),
        (
            {"autoscaling": {"type": "keda", "minReplicas": 0, "keda": {"triggers": [{"type": "cron"}]}}},
            "so that their retry and replay topics have triggers",
        ),
        ({"kind": "Job", "autoscaling": {"type": "hpa"}}, "autoscaling.type is hpa but kind is Job"),
        ({"topicsJob": {"enabled": True}, "topics": [{"name": "orders"}]}, "no entry of topics has create"),
        (
            {"settings": {"kafka": {"consumer": {"group.instance.id": "me"}}}},
            "all but one would be fenced. Use kind: StatefulSet",
        ),
    ],
    ids=str,
)
def test_what_can_not_work_together_is_a_sentence_with_the_value_to_change(
    helm: Helm, values: dict[str, Any], said: str
) -> None:
    assert said in refusal(helm, values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"settings": {"sasl_password": SECRET}},
            "settings.sasl_password would put a secret into a ConfigMap",
        ),
        ({"settings": {"ssl_key_password": SECRET}}, "name that in auth.tls.keyPasswordKey"),
        ({"settings": {"control_act_token": SECRET}}, "name that in auth.tokens"),
        (
            {"settings": {"kafka": {"common": {"ssl.key.pem": SECRET}}}},
            "STREAMLOOP_KAFKA__COMMON__SSL_KEY_PEM in extraEnv",
        ),
        (
            {"settings": {"kafka": {"consumer": {"sasl.oauthbearer.client.secret": SECRET}}}},
            "settings.kafka.consumer.sasl.oauthbearer.client.secret would put a secret",
        ),
        (
            {"extraEnv": [{"name": "STREAMLOOP_SASL_PASSWORD", "value": SECRET}]},
            "extraEnv has STREAMLOOP_SASL_PASSWORD with its value",
        ),
        (
            {"extraEnv": [{"name": "STREAMLOOP_KAFKA__COMMON__SASL_PASSWORD", "value": SECRET}]},
            "Use valueFrom.secretKeyRef",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_secret_in_the_values_is_refused_and_not_repeated(
    helm: Helm, values: dict[str, Any], said: str
) -> None:
    found = refusal(helm, values)
    assert said in found
    assert SECRET not in found


def test_everything_that_is_wrong_is_said_at_once(helm: Helm) -> None:
    found = refusal(
        helm, {"terminationGracePeriodSeconds": 1, "minReadySeconds": 1, "settings": {"member": "me"}}
    )
    assert found.count("\n- ") == 3


def test_names_of_files_and_addresses_are_no_secrets(helm: Helm) -> None:
    common = {
        "ssl.key.location": "/etc/key",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.com",
        "sasl.oauthbearer.client.id": "billing",
    }
    values = {
        "settings": {"sasl_password_file": "/vault/password", "kafka": {"common": common}},
        "extraEnv": [{"name": "STREAMLOOP_SASL_PASSWORD_FILE", "value": "/vault/password"}],
    }
    text = yaml.safe_dump(helm.template(CHART, values=with_base(values)))
    assert "/vault/password" in text
