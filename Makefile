# Everything a developer types. `make help` lists the targets; each sets up what it needs.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_VENV := build/docs-venv
DOCS_STAMP := $(DOCS_VENV)/.installed
MUTANTS_VENV := build/mutants-venv
MUTANTS_STAMP := $(MUTANTS_VENV)/.installed
LINKS := orchestrator/lua orchestrator/workers
# The first of these interpreters that really starts (version shims may exist without one).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos check docs generate fmt bench bench-peers mutants lock image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned development requirements

$(STAMP): requirements/dev.txt pyproject.toml | $(LINKS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; install it or run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(LINKS): # they are in git; a source archive has none
	ln -s ../$(@F) $@

demo: $(STAMP) ## run a team of agents on real input (ARGS=path audits another tree)
	$(BIN)/orc demo $(ARGS)

# Without stored bytecode each of the many processes that tests start compiles the product again. Tests wait about half of their
# time, so that two cores run three at a time.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) ## run the test suite (ARGS="-k name" and the like)
	$(BIN)/python -m pytest -n 3 $(ARGS)

chaos: $(STAMP) ## random kills, freezes and cuts under load, then judge (ARGS="--minutes 10 --seed 7 --redis 7.0")
	$(BIN)/python -m tests.chaos $(ARGS)

check: $(STAMP) ## format, lint, types, import contracts, words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright --project tests/typing --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

docs: $(DOCS_STAMP) ## build the manual into build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "build/site/index.html"

$(DOCS_STAMP): requirements/docs.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; install it or run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

generate: $(STAMP) ## write generated files anew: methods of orc.admin, types of the blocking client, dashboard
	$(BIN)/python -m tools.admin_methods
	$(BIN)/python -m tools.sync_stub
	$(BIN)/python -m tools.grafana
	$(BIN)/python -m tools.openapi
	$(BIN)/python -m tools.default_settings

fmt: $(STAMP) ## format and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure throughput, latency and cost; prints Markdown and JSON
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(STAMP) ## the same beside other task queues, each installed in an environment of its own (ten minutes)
	$(BIN)/python -m benchmarks --peers $(ARGS)

mutants: $(MUTANTS_STAMP) ## change the product in one place at a time, find what no test notices (ARGS="lua --only tasks/finish")
	$(MUTANTS_VENV)/bin/python -m tools.mutants $(ARGS)

$(MUTANTS_STAMP): requirements/mutants.txt pyproject.toml | $(LINKS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; install it or run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(MUTANTS_VENV)/bin/python || $(PYTHON) -m venv $(MUTANTS_VENV)
	$(MUTANTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/mutants.txt
	$(MUTANTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

COMPILE := CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options
# The libraries of the image are those that the tests run with.
AS_TESTED := --constraint requirements/dev.txt

lock: build/lock/bin/pip-compile ## pin requirements/*.txt anew from pyproject.toml (ARGS=--upgrade for newer versions)
	for extra in dev docs mutants; do \
		$(COMPILE) --extra $$extra --build-deps-for editable --output-file requirements/$$extra.txt pyproject.toml $(ARGS) || exit 1; \
	done
	$(COMPILE) $(AS_TESTED) --extra dashboard --extra fast --extra monitoring --extra otel --extra s3 --extra zstd --output-file requirements/image.txt pyproject.toml $(ARGS)
	$(COMPILE) $(AS_TESTED) --only-build-deps --build-deps-for wheel --output-file requirements/build.txt pyproject.toml $(ARGS)
	$(COMPILE) --output-file requirements/lock.txt requirements/lock.in $(ARGS)

build/lock/bin/pip-compile: requirements/lock.txt
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt

VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
ENGINE ?= docker
IMAGE ?= redis-orchestrator
# Address of the repository, for the label.
SOURCE ?=

image: ## build the container image (ENGINE=podman, IMAGE=name, SOURCE=url, ARGS="--build-arg BASE=…")
	$(ENGINE) build --tag $(IMAGE):$(VERSION) --tag $(IMAGE):latest \
		--label org.opencontainers.image.version=$(VERSION) \
		--label org.opencontainers.image.revision=$$(git describe --always --dirty --abbrev=40 --exclude='*') \
		--label org.opencontainers.image.created=$$(git log -1 --format=%cI) \
		--label org.opencontainers.image.source=$(SOURCE) $(ARGS) .

clean: ## remove the environment, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
