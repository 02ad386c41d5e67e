module streamloop.io/tests/tools/crds

go 1.24.0

// Nothing is built of these: only the files of their custom resource definitions are used.
require (
	github.com/kedacore/keda/v2 v2.18.1
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
