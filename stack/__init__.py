"""What there is to look at: configuration of Jaeger, Prometheus and Grafana, and `make stack`.

docker-compose.yml mounts these files into containers; run.py starts the same programs natively.
"""
