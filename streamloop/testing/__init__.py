"""Test a StreamLoop without a broker and in virtual time: its handlers, retries, dead letters and commits.

This module is the harness's public API, whole. docs/testing.md shows how it is used.
"""

from streamloop.engine.retry import Failure
from streamloop.testing.broker import KafkaRecord, RoutedRecord, partition_of
from streamloop.testing.clock import StandsStillError
from streamloop.testing.errors import HarnessError, StillWaitingError
from streamloop.testing.harness import Harness
from streamloop.testing.member import Waiting
from streamloop.testing.trace import Attempt, MessageOutcome, Outcome

__all__ = [
    "Attempt",
    "Failure",
    "Harness",
    "HarnessError",
    "KafkaRecord",
    "MessageOutcome",
    "Outcome",
    "RoutedRecord",
    "StandsStillError",
    "StillWaitingError",
    "Waiting",
    "partition_of",
]
