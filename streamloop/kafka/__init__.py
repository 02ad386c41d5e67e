"""The shell: what talks to Kafka, and decides nothing that the engine can decide."""
