"""Tests of the pure engine: no broker, no thread, no clock but the one that a test moves."""
