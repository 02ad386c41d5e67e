"""The project's tests. `realkafka` starts the Apache Kafka that the tests under `broker` need."""
