"""values.schema.json: the values of the chart, with the settings' own schema inside.

Strict: a name that is not known is refused, but for ``global`` and ``enabled``, which a parent chart may set.
What belongs to Kubernetes (affinity, volumes, ..) is checked by its API server and is any object here. Called
by helm.generate.
"""

from __future__ import annotations

from typing import Any, Final

from streamloop.settings import json_schema
from streamloop.settings.layers import SECTIONS
from streamloop.settings.model import Settings, is_secret

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
LABELS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Final[Schema] = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^(\s*[0-9.]+(ms|s|m|h|d)?\s*)+$"},
    ]
}
QUANTITY: Final[Schema] = {"type": ["string", "integer"], "pattern": r"^[0-9.]+([eE][0-9]+|[kMGTP]i?)?$"}
SECRET_NAME: Final[Schema] = {"type": "string", "pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}


def whole(least: int = 0, *, null: bool = False) -> Schema:
    """A whole number; ``null``: or none, which stands for a default that is computed."""
    return {"type": ["integer", "null"] if null else "integer", "minimum": least}


def one_of(*words: str) -> Schema:
    """One of these words."""
    return {"enum": list(words)}


def group(**properties: Schema) -> Schema:
    """A map with these keys and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def topic() -> Schema:
    """One source topic."""
    entry = group(
        name={"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$"},
        consumer=TEXT,
        retryTopics={"type": "array", "items": DURATION},
        lagThreshold=whole(1),
        create={
            **group(
                partitions=whole(1),
                replicationFactor=whole(1),
                config={"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
            ),
            "required": ["partitions"],
        },
    )
    return {**entry, "required": ["name"]}


def own_values() -> dict[str, Schema]:
    """Every value but ``settings``, in the order of values.yaml."""
    return {
        "kind": one_of("Deployment", "StatefulSet", "Job", "CronJob"),
        "app": {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"},
        "args": TEXTS,
        "command": TEXTS,
        "workingDir": TEXT,
        "replicas": whole(),
        "image": group(
            registry=TEXT,
            repository={"type": "string", "minLength": 1},
            tag=TEXT,
            digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
            pullPolicy=one_of("Always", "IfNotPresent", "Never"),
        ),
        "imagePullSecrets": {"type": "array", "items": {"type": ["object", "string"]}},
        "nameOverride": TEXT,
        "fullnameOverride": TEXT,
        "topics": {"type": "array", "items": topic()},
        "auth": group(
            sasl=group(existingSecret=SECRET_NAME, passwordKey=TEXT, usernameKey=TEXT),
            tls=group(existingSecret=SECRET_NAME, caKey=TEXT, certKey=TEXT, keyKey=TEXT, keyPasswordKey=TEXT),
            tokens=group(existingSecret=SECRET_NAME, readKey=TEXT, actKey=TEXT),
        ),
        "otel": group(
            endpoint={"type": "string", "pattern": "^(https?://.+)?$"},
            protocol=one_of("", "grpc", "http/protobuf"),
            resourceAttributes=LABELS,
            headers=group(existingSecret=SECRET_NAME, key=TEXT),
        ),
        "podMonitor": group(
            enabled=FLAG,
            labels=LABELS,
            annotations=LABELS,
            interval=TEXT,
            scrapeTimeout=TEXT,
            jobName=TEXT,
            relabelings=OBJECTS,
            metricRelabelings=OBJECTS,
        ),
        "prometheusRule": group(
            enabled=FLAG,
            labels=LABELS,
            annotations=LABELS,
            disabled=TEXTS,
            alertLabels=LABELS,
            extraGroups=OBJECTS,
        ),
        "dashboards": group(enabled=FLAG, labels=LABELS, annotations=LABELS, namespace=TEXT),
        "terminationGracePeriodSeconds": whole(1, null=True),
        "minReadySeconds": whole(null=True),
        "progressDeadlineSeconds": whole(1, null=True),
        "revisionHistoryLimit": whole(),
        "strategy": OBJECT,
        "lifecycle": OBJECT,
        "preStopSeconds": whole(),
        "probes": group(enabled=FLAG, startup=OBJECT, readiness=OBJECT, liveness=OBJECT),
        "statefulSet": group(
            staticMembership=FLAG,
            podManagementPolicy=one_of("Parallel", "OrderedReady"),
            updateStrategy=OBJECT,
        ),
        "bounds": group(
            untilEnd=FLAG, maxMessages=whole(1, null=True), maxRuntime={"anyOf": [{"const": ""}, DURATION]}
        ),
        "job": group(
            parallelism=whole(1),
            backoffLimit=whole(),
            activeDeadlineSeconds=whole(1, null=True),
            ttlSecondsAfterFinished=whole(),
        ),
        "cronJob": group(
            schedule={"type": "string", "minLength": 1},
            timeZone=TEXT,
            concurrencyPolicy=one_of("Allow", "Forbid", "Replace"),
            startingDeadlineSeconds=whole(),
            suspend=FLAG,
            successfulJobsHistoryLimit=whole(),
            failedJobsHistoryLimit=whole(),
        ),
        "resources": {
            "type": "object",
            "properties": {"limits": {"type": "object", "properties": {"memory": QUANTITY}}},
        },
        "autoscaling": group(
            type=one_of("none", "hpa", "keda"),
            minReplicas=whole(),
            maxReplicas=whole(1),
            behavior=OBJECT,
            hpa=group(cpuUtilization=whole(1, null=True), metrics=OBJECTS),
            keda=group(
                lagThreshold=whole(1),
                activationLagThreshold=whole(),
                retryTriggers=FLAG,
                retryLagThreshold=whole(1),
                pollingInterval=whole(1),
                cooldownPeriod=whole(),
                version=TEXT,
                metadata=LABELS,
                triggers=OBJECTS,
                fallback=OBJECT,
                authenticationRef=TEXT,
            ),
        ),
        "podDisruptionBudget": group(
            enabled=FLAG,
            maxUnavailable={"anyOf": [whole(1), {"type": "string", "pattern": "^[0-9]+%$"}]},
            unhealthyPodEvictionPolicy=one_of("AlwaysAllow", "IfHealthyBudget"),
        ),
        "topologySpreadConstraints": {"type": ["array", "null"], "items": {"type": "object"}},
        "nodeSelector": LABELS,
        "tolerations": OBJECTS,
        "affinity": OBJECT,
        "priorityClassName": TEXT,
        "runtimeClassName": TEXT,
        "serviceAccount": group(create=FLAG, name=TEXT, annotations=LABELS),
        "podSecurityContext": OBJECT,
        "securityContext": OBJECT,
        "tmp": group(sizeLimit=QUANTITY),
        "networkPolicy": group(enabled=FLAG, ingressFrom=OBJECTS, extraIngress=OBJECTS, egress=OBJECTS),
        "controlService": group(enabled=FLAG, ingressFrom=OBJECTS, annotations=LABELS),
        "topicsJob": group(
            enabled=FLAG, withLoop=FLAG, wait=DURATION, backoffLimit=whole(), activeDeadlineSeconds=whole(1)
        ),
        "test": group(enabled=FLAG, args=TEXTS, activeDeadlineSeconds=whole(1)),
        "commonLabels": LABELS,
        "commonAnnotations": LABELS,
        "podLabels": LABELS,
        "podAnnotations": LABELS,
        "extraEnv": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "extraEnvFrom": OBJECTS,
        "extraVolumes": OBJECTS,
        "extraVolumeMounts": OBJECTS,
        "initContainers": OBJECTS,
        "extraContainers": OBJECTS,
        "dnsConfig": OBJECT,
        "hostAliases": OBJECTS,
        "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
    }


def values_schema() -> Schema:
    """The whole schema."""
    settings = json_schema()
    settings.pop("$schema")
    definitions = settings.pop("$defs")
    for name in Settings.model_fields:
        if is_secret((name,)):
            # The templates refuse it, with a sentence that says where it belongs.
            settings["properties"][name] = {"description": "A secret: refused here, see auth."}
    assert set(definitions["KafkaSettings"]["properties"]) == set(SECTIONS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart streamloop",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **own_values(),
            "settings": settings,
            "global": OBJECT,
            "enabled": {"description": "For a parent chart's condition; not read here."},
        },
        "$defs": definitions,
    }
