"""The pure core: standard library only; no Kafka, no clock, no thread, no asyncio.

It is told what happened and what time it is, and answers with what to do. The shell (``streamloop.kafka``,
``streamloop.runners``, ``streamloop.app``) acts.
"""
