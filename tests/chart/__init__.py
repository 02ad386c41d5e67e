"""The Helm chart, as far as Helm alone can show it: what it renders, what it refuses, what it is made from.

What only a Kubernetes API server can tell is in tests/cluster.
"""
