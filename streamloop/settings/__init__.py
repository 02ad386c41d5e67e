"""Settings: one typed, immutable model, read from the command line, keywords, the environment and YAML.

``Settings.load`` reads them, ``check_sums`` compares those that depend on each other, ``describe`` shows what
is in force and where it came from. Secrets are never shown. Nothing here talks to Kafka.
"""

from streamloop.settings.describe import Row, describe, json_schema
from streamloop.settings.layers import DEFAULT, Layer, Origin
from streamloop.settings.load import Loaded
from streamloop.settings.model import ConsumerSettings, HandlerSettings, KafkaSettings, Settings
from streamloop.settings.sums import Problem, Severity, check_sums

__all__ = [
    "DEFAULT",
    "ConsumerSettings",
    "HandlerSettings",
    "KafkaSettings",
    "Layer",
    "Loaded",
    "Origin",
    "Problem",
    "Row",
    "Settings",
    "Severity",
    "check_sums",
    "describe",
    "json_schema",
]
