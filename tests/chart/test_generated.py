"""What the chart is made from, and that it can't drift from that. Needs no Helm."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from pydantic import Field

import helm.generate
import helm.readme
import helm.schema
from helm.generate import CHART, HIDDEN, SHOWN, SHOWN_VARIABLES, generated, stale
from helm.schema import own_values, values_schema
from streamloop.settings import Settings, json_schema
from streamloop.settings.layers import Names
from streamloop.settings.load import NAMES
from streamloop.settings.model import is_secret
from streamloop.settings.reference import reference
from streamloop.version import __version__
from tests.chart.rendered import CI_VALUES, SIZES, values_of
from tests.mock_cluster import _library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MADE_FROM_THE_MODEL = (
    "streamloop.settings.describe",
    "streamloop.settings.reference",
    "helm.generate",
    "helm.schema",
)


def test_everything_that_is_made_is_up_to_date() -> None:
    assert stale() == [], "run `make chart`"


class Changed(Settings):
    """The model with a setting more."""

    patience: int = Field(7, ge=1, le=9)
    """How long it waits for nothing in particular."""


def test_a_new_setting_in_the_model_changes_schema_values_readme_and_docs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(settings=NAMES.settings | {"patience"}, consumer=NAMES.consumer)
    for module in map(sys.modules.__getitem__, MADE_FROM_THE_MODEL):
        monkeypatch.setattr(module, "Settings", Changed, raising=False)
        monkeypatch.setattr(module, "NAMES", names, raising=False)
    changed = {path.name for path in stale()}
    assert changed == {"values.schema.json", "values.yaml", "README.md", "model.yaml"}
    schema = values_schema()["properties"]["settings"]["properties"]["patience"]
    assert (schema["minimum"], schema["maximum"]) == (1, 9)
    made = {path.name: text for path, text in generated().items()}
    assert "# patience: 7" in made["values.yaml"]
    assert "| `patience` | `7` | How long it waits for nothing in particular. |" in made["README.md"]
    assert "`patience`" in reference()  # docs/settings.md, with a test of its own


def test_a_changed_default_changes_values_readme_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings.model_fields["drain_timeout"], "default", 26.0)
    changed = {path.name for path in stale()}
    assert changed == {"values.yaml", "README.md", "model.yaml", "deploy.md"}


def test_a_secret_setting_that_nobody_has_placed_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithSecret(Settings):
        vault_password: str = ""
        """A secret that the chart does not know how to give."""

    monkeypatch.setattr(helm.generate, "Settings", WithSecret)
    with pytest.raises(KeyError, match="vault_password"):
        helm.generate.model()


def test_the_settings_in_the_values_schema_are_the_models_but_for_secrets() -> None:
    made = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    settings, model = made["properties"]["settings"], json_schema()
    assert settings["additionalProperties"] is False
    assert settings["properties"].keys() == model["properties"].keys()
    for name, wanted in model["properties"].items():
        if not is_secret((name,)):
            assert settings["properties"][name] == wanted
    assert made["$defs"] == model["$defs"]


def test_the_chart_has_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__


def test_every_value_is_in_the_schema_and_every_property_of_the_schema_is_a_value() -> None:
    values = values_of(CHART / "values.yaml")

    def walk(value: Any, schema: Any, where: str) -> Iterator[str]:
        if not isinstance(schema, dict) or schema.get("additionalProperties") is not False:
            return
        for name in schema["properties"].keys() ^ value.keys():
            yield f"{where}{name}"
        for name in schema["properties"].keys() & value.keys():
            yield from walk(value[name], schema["properties"][name], f"{where}{name}.")

    schema = {"additionalProperties": False, "properties": {**own_values(), "settings": {}, "global": {}}}
    assert list(walk(values, schema, "")) == []
    jsonschema.validate(values, values_schema())


@pytest.mark.parametrize("path", [*CI_VALUES, *SIZES], ids=lambda path: path.stem)
def test_the_values_files_follow_the_schema_by_another_validator(path: Path) -> None:
    jsonschema.validate(values_of(path), values_schema())


def test_every_file_of_values_says_what_it_is_for_and_every_value_what_it_is() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"values\.yaml does not say what these are.*: replicas"):
        helm.readme.sections(re.sub(r"# -- Members of the group.*\n", "", text))
    assert {path.stem for path in SIZES} == {"small", "medium", "large"}


def librdkafka_properties() -> list[str]:
    """The names of all properties, as the library tells them."""
    library = _library()
    library.rd_kafka_conf_dump.restype = ctypes.POINTER(ctypes.c_char_p)
    count = ctypes.c_size_t()
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    dumped = library.rd_kafka_conf_dump(configuration, ctypes.byref(count))
    return [dumped[at].decode() for at in range(0, count.value, 2)] + [
        # Without a default they are not dumped.
        *("sasl.username", "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.key.location"),
        *("ssl.keystore.password", "ssl.keystore.location", "ssl.certificate.pem", "ssl.ca.location"),
        *("sasl.oauthbearer.config", "sasl.oauthbearer.extensions", "sasl.oauthbearer.client.id"),
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope"),
        *("sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.private.key.pem"),
        *("sasl.oauthbearer.assertion.private.key.passphrase", "sasl.passwort", "client.id"),
    ]


def test_the_patterns_for_secrets_agree_with_the_model_on_every_name_there_is() -> None:
    properties = librdkafka_properties()
    assert len(properties) > 100
    for name in [*properties, *NAMES.settings, *NAMES.consumer]:
        found = bool(re.search(HIDDEN, name)) and not re.search(SHOWN, name)
        assert found == is_secret((name,)), name
        variable = name.replace(".", "_")
        by_variable = bool(re.search(HIDDEN.replace(r"\.", "_"), variable))
        assert (by_variable and not re.search(SHOWN_VARIABLES, variable)) == is_secret((name,)), name
