"""Tests of what there is to look at: compose file, what it mounts, rules, dashboards, `make stack`."""
