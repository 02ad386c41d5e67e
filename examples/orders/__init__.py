"""A shop that sends orders, and the service that charges them: what docker-compose.yml and `make stack` run."""
