"""Run a handler as a member of a Kafka consumer group: lose nothing, stall on nothing, hide nothing.

This module is the public API, whole, and nothing else. ``streamloop.testing`` has the harness for tests.
"""

from streamloop.app import StreamLoop
from streamloop.codecs import Codec
from streamloop.engine.retry import Failure, Kind
from streamloop.errors import (
    ConfigurationError,
    DecodeError,
    EncodeError,
    PublishError,
    StreamLoopError,
    TopicError,
)
from streamloop.lifecycle import RunResult
from streamloop.message import Delivery, Message
from streamloop.outcomes import Ack, Fatal, Outcome, Reject, Retry, Skip, Unavailable
from streamloop.preflight import CheckReport
from streamloop.status import Health, LoopStatus
from streamloop.telemetry.sampler import KeepFailedSampler
from streamloop.version import __version__

__all__ = [
    "Ack",
    "CheckReport",
    "Codec",
    "ConfigurationError",
    "DecodeError",
    "Delivery",
    "EncodeError",
    "Failure",
    "Fatal",
    "Health",
    "KeepFailedSampler",
    "Kind",
    "LoopStatus",
    "Message",
    "Outcome",
    "PublishError",
    "Reject",
    "Retry",
    "RunResult",
    "Skip",
    "StreamLoop",
    "StreamLoopError",
    "TopicError",
    "Unavailable",
    "__version__",
]
