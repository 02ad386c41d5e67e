"""What an operator asks a running loop (probes, metrics, status), and what he tells it (pause, resume)."""
