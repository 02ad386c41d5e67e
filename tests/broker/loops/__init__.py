"""Loops for the tests on a real broker: one that runs in the test's own process, and modules for member processes."""
