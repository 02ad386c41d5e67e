# The project's verbs, the same for people and CI. Each prints what it runs.
# PYTHON chooses the interpreter (3.11 or newer), VENV the virtual environment, ARGS adds arguments to pytest or the benchmark.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV := uv==0.13.9

.PHONY: help setup demo stack tools dashboards chart test test-broker test-replay test-console test-stack test-jaeger \
    test-chart test-image lint format bench lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(STAMP) ## make the virtual environment and install the package into it, from requirements.lock

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "streamloop needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": name another one, for example make setup PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## 20,000 orders through the real consumer, killed half-way: needs only Python
	$(BIN)/python -m streamloop.demo

stack: $(STAMP) ## Kafka, Jaeger, Prometheus, a sample shop and two members: needs Java 17, Maven and Go
	$(BIN)/python -m stack.run $(ARGS)

tools: $(STAMP) ## build Jaeger, Prometheus, Helm, a Kubernetes control plane .. for the tests and the stack: minutes, once
	$(BIN)/python -m tests.tools build

dashboards: $(STAMP) ## write Grafana's dashboards from stack/dashboards.py
	$(BIN)/python -m stack.dashboards

chart: $(STAMP) ## write what the Helm chart has from the settings, the rules and the dashboards
	$(BIN)/python -m helm.generate

test: $(STAMP) ## every test that needs neither a broker nor a browser nor programs built with Go
	$(BIN)/python -m pytest -m "not broker and not tools and not cluster and not image and not browser" $(ARGS)

test-broker: $(STAMP) ## the tests on a real Apache Kafka: needs Java 17 and Maven
	$(BIN)/python -m pytest -m "broker and not replay and not cluster and not image and not browser" $(ARGS)

test-replay: $(STAMP) ## replay on a real Apache Kafka: killed, stopped, fenced and cut off at every step
	$(BIN)/python -m pytest tests/replay $(ARGS)

test-console: $(STAMP) ## the console in Chromium, on real members too: needs chromium, Java 17, Maven and Go
	$(BIN)/python -m pytest -m browser $(ARGS)

test-stack: $(STAMP) ## the tests with Jaeger, Prometheus, promtool and compose's reader: needs Go
	$(BIN)/python -m pytest -m "tools and not broker and not browser" --ignore=tests/chart --ignore=tests/cluster $(ARGS)

test-jaeger: $(STAMP) ## the life of an order on a real Kafka in a real Jaeger, and a collector that is away: needs Java, Maven and Go
	$(BIN)/python -m pytest tests/jaeger tests/broker/test_life_in_jaeger.py $(ARGS)

test-chart: $(STAMP) ## the Helm chart: rendered, validated, and on a Kubernetes control plane: needs Java, Maven and Go
	$(BIN)/python -m pytest tests/chart tests/cluster $(ARGS)

test-image: $(STAMP) ## the image, built and run: needs root, and Debian's buildah and debootstrap
	$(BIN)/python -m pytest tests/image $(ARGS)

lint: $(STAMP) ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## messages a second beside bare loops and Java's Parallel Consumer: needs Java 17 and Maven
	$(BIN)/python -m benchmarks.run $(ARGS)

lock: ## resolve requirements.lock, and the image's locks, anew, for every Python that is supported
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	printf 'hatchling>=1.27,<2\neditables>=0.5,<1\n' | $(BIN)/python -m uv pip compile pyproject.toml - \
	    --group dev --all-extras --universal --python-version 3.11 --generate-hashes --upgrade \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet --output-file requirements.lock
	sed -n 's/^\([a-z0-9][^ ]*==[^\\]*[^\\ ]\) *\\\{0,1\}$$/\1/p' requirements.lock > image/constraints.txt
	$(BIN)/python -m uv pip compile pyproject.toml --group image --all-extras --universal --python-version 3.11 \
	    --constraint image/constraints.txt --generate-hashes --no-header --no-annotate --no-emit-index-url \
	    --no-emit-find-links --quiet --output-file image/requirements.lock
	printf 'hatchling>=1.27,<2\n' | $(BIN)/python -m uv pip compile - --universal --python-version 3.11 \
	    --constraint image/constraints.txt --generate-hashes --no-header --no-annotate --no-emit-index-url \
	    --no-emit-find-links --quiet --output-file image/build.lock
	rm image/constraints.txt

clean: ## remove the virtual environment and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/java/target
