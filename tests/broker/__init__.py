"""Scenarios that only a real Apache Kafka can show. Every test here bears the marker `broker`."""
