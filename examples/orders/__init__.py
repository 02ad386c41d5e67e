"""A shop that sends orders, and the service that charges them.

What docker-compose.yml and `make stack` run.
"""
