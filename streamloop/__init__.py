"""Run a handler as a member of a Kafka consumer group: lose nothing, stall on nothing, hide nothing."""

__version__ = "0.1.0"
