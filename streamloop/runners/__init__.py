"""Run handlers: on the event loop (aio), in threads, inline on the loop, and in batches.

A runner gets records that the engine dispatched, claims each one right before its handler starts, and hands
back what became of it. It decides nothing about retries, order or acknowledgement.
"""
