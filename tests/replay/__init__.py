"""Dead letters brought back once, whatever happens meanwhile: on a real Apache Kafka (`make test-replay`)."""
