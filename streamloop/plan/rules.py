"""The numbers that the rules of a plan stand on; the settings' defaults are taken from their model."""

from __future__ import annotations

from typing import Final

from streamloop.settings.model import MIB, Settings

COVER: Final = float(Settings.model_fields["dwell"].default)
"""Seconds that the buffer lasts at the rate at which messages come: as long as it may stay full before a
partition is paused, so that a fetch after that finds the handlers still at work."""
LOW: Final = float(Settings.model_fields["low_watermark"].default)
BACKOFF_SHARE: Final = float(Settings.model_fields["backoff_share"].default)
GAP_LIMIT: Final = int(Settings.model_fields["gap_limit"].default)
REVOKE_WAIT: Final = float(Settings.model_fields["revoke_wait"].default)
RETRY_RETENTION: Final = float(Settings.model_fields["retry_topic_retention"].default)
LEAST_MESSAGES: Final = 100
LEAST_BYTES: Final = 8 * MIB
SIZE_SPREAD: Final = 2
"""Messages differ in size: the buffer takes this much more than its messages at their mean size."""
TIMEOUT_FACTOR: Final = 5
"""A handler that takes this many times as long as 99 of 100 has hung."""
LEAST_TIMEOUT: Final = 1.0
DRAIN_MARGIN: Final = 1.0
"""Seconds of the drain after the last handler may have ended: its publishes and the last commit."""
MEMORY_HEADROOM: Final = 1.25
MEMORY_STEP: Final = 16 * MIB
STANDSTILL: Final = 600.0
"""Seconds: the outage after which it is said how long catching up takes."""
