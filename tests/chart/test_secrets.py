"""Secrets by reference: mounted as files from Secrets that exist, never in a ConfigMap, never made here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from streamloop.settings import Settings
from tests.chart.rendered import CHART, CI_VALUES, config_text, container, member

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tools.helm import Helm


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_the_chart_makes_no_secret(helm: Helm, path: Path) -> None:
    assert "Secret" not in {made["kind"] for made in helm.template(CHART, "-f", path)}


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "keda-zero-sasl",
            {
                "sasl_password_file": ("kafka-login", "password"),
                "ssl_ca_location": ("kafka-ca", "ca.crt"),
            },
        ),
        (
            "mtls",
            {
                "ssl_ca_location": ("billing-tls", "ca.crt"),
                "ssl_certificate_location": ("billing-tls", "tls.crt"),
                "ssl_key_location": ("billing-tls", "tls.key"),
                "ssl_key_password_file": ("billing-tls", "password"),
            },
        ),
        (
            "tokens",
            {
                "control_read_token_file": ("billing-tokens", "read"),
                "control_act_token_file": ("billing-tokens", "act"),
            },
        ),
    ],
)
def test_settings_name_the_files_that_the_mounted_secrets_bring(
    helm: Helm, name: str, files: dict[str, tuple[str, str]]
) -> None:
    objects = helm.template(CHART, "-f", CHART / f"ci/{name}-values.yaml")
    volumes = {each["name"]: each for each in member(objects)["spec"]["volumes"]}
    there = {}
    for mount in container(objects)["volumeMounts"]:
        secret = volumes[mount["name"]].get("secret")
        if secret is not None:
            # Readable for the pod's group, and for nobody else.
            assert secret["defaultMode"] == 0o440
            for item in secret["items"]:
                there[f"{mount['mountPath']}/{item['path']}"] = (secret["secretName"], item["key"])
    settings = yaml.safe_load(config_text(objects))
    assert {setting: there[settings[setting]] for setting in files} == files
    assert set(files) <= Settings.model_fields.keys()
    assert len(there) == len(files)


def test_a_user_name_may_come_from_the_secret_too(helm: Helm) -> None:
    own = container(helm.template(CHART, "-f", CHART / "ci/keda-zero-sasl-values.yaml"))
    reference = {"secretKeyRef": {"name": "kafka-login", "key": "username"}}
    assert {"name": "STREAMLOOP_SASL_USERNAME", "valueFrom": reference} in own["env"]


def test_the_headers_for_a_collector_come_from_a_secret(helm: Helm) -> None:
    own = container(helm.template(CHART, "-f", CHART / "ci/observed-values.yaml"))
    reference = {"secretKeyRef": {"name": "collector", "key": "headers"}}
    assert {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": reference} in own["env"]
