"""The chart on a real Kubernetes control plane, and its pods' command lines as processes on a real Kafka.

etcd, API server, controller manager and scheduler are the real ones. Nodes and pods only pretend to run
(KWOK), with stages of ours: a pod becomes ready some time after its start, and is gone some time after its
deletion. What a pod really does is tested apart from that (test_pods.py).
"""
