"""``python -m streamloop.demo``: 20,000 orders through the real consumer, killed half-way.

Runs on librdkafka's embedded broker, so that it needs nothing but Python. Proves that nothing is lost on the
way through failures, retries, dead letters and a SIGKILL; proves nothing about a real broker's transactions,
retention or limits.
"""
