module streamloop.io/tests/tools/grafana

go 1.24.6

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
