"""Loops for the tests on a real broker: one in the test's own process, and modules for member processes."""
