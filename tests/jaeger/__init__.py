"""Tests with a real Jaeger: what an operator finds there. `make test-jaeger` runs them."""
