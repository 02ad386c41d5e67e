"""What the harness says when a test asks for something that is not there, or waits for what never comes."""

from __future__ import annotations

from streamloop.errors import StreamLoopError


class HarnessError(StreamLoopError):
    """The test can't do this: a sentence that says what there is instead."""


class StillWaitingError(AssertionError):
    """run() has reached its limit: what still waits, a line each."""
