# Everything runs in .venv, which make builds from a bare Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SCHEMATHESIS_CASES ?= 10000
SEEDS ?= 1000
TEST_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
UV     := $(BIN)/uv
UV_VERSION := 0.13.7

CODE     := src packages tests $(wildcard bench examples scripts)
OURS     := pyproject.toml packages/towline-once/pyproject.toml packages/towline-sim/pyproject.toml
INSTALL  := VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet
COMPILE  := $(UV) pip compile --quiet --universal --python-version 3.11 \
            --no-emit-index-url --no-header --no-annotate \
            $(foreach one,towline-once towline towline-sim,--no-emit-package $(one))

# Every process would compile all that it imports, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo serve test proof floors chaos fuzz schemathesis check bench docs format lock clean walk

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## a simulated fleet under tow, an hour a minute; opens the dashboard
	$(BIN)/towline demo $(DEMO_ARGS)

serve: $(VENV)/.runtime ## run the service on 127.0.0.1:8788
	$(BIN)/towline serve

# mypy has one process, so check and floors run side by side.
# Tests wait about as often as they work, so there are more of them at a time than processors.
# What forks for ever is tried with nothing else beside it.
test: $(VENV)/.dev $(VENV)/.client ## the gate: check, floors, every test on real PostgreSQL and Redis
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check floors
	$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal --ignore=tests/sandbox $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/sandbox

proof: $(VENV)/.dev ## all that the gate has a part of, in full size; SEEDS=10000
	$(BIN)/python -m scripts.proof --seeds $(SEEDS) $(PROOF_ARGS)

chaos: $(VENV)/.dev ## an hour of faults on real servers; CHAOS_ARGS="--minutes 10 --seed 7"
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

floors: $(VENV)/.dev ## a quick part of the tests at the lowest and at the newest dependencies
	$(BIN)/python -m scripts.floors $(FLOORS_ARGS)

schemathesis: $(VENV)/.dev ## 10,000 requests against the running service; SCHEMATHESIS_CASES=500
	TOWLINE_TEST_SCHEMATHESIS_CASES=$(SCHEMATHESIS_CASES) \
	    $(BIN)/python -m pytest tests/openapi/test_schemathesis.py $(PYTEST_ARGS)

fuzz: $(VENV)/.fuzz ## search for bytes that break a parser; FUZZ_ARGS="--seconds 10 keys.text"
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

check: $(VENV)/.dev ## ruff, strict mypy, the import contracts and the OpenAPI
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.openapi_lint

walk: $(VENV)/.dev ## five ways through the running program, room by room; WALK_ARGS=comment
	$(BIN)/python -m scripts.walk $(WALK_ARGS)

bench: $(VENV)/.bench ## measure beside raw drivers and peers; writes docs/benchmarks/
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: $(VENV)/.dev ## write the reference anew from the code, and build site/ strictly
	$(BIN)/python -m scripts.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.dev ## sort imports, fix what can be fixed, format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

lock: $(UV) ## resolve the requirements again and write the lock files
	$(COMPILE) $(LOCK_ARGS) --all-extras $(OURS) -o requirements.lock
	$(COMPILE) $(LOCK_ARGS) --all-extras $(OURS) requirements-dev.in \
	    -c requirements.lock -o requirements-dev.lock
	$(COMPILE) $(LOCK_ARGS) requirements-bench.in -c requirements-dev.lock -o requirements-bench.lock
	$(COMPILE) $(LOCK_ARGS) requirements-client.in -o requirements-client.lock
	$(COMPILE) $(LOCK_ARGS) requirements-fuzz.in -c requirements-dev.lock -o requirements-fuzz.lock

clean: ## remove the virtual environment and everything that was built
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Towline needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Each lock pins what the one before it pins, so the stamps may be made in any order.
$(VENV)/.runtime: requirements.lock $(OURS) | $(UV)
	$(INSTALL) -r requirements.lock
	$(INSTALL) --no-deps -e packages/towline-once -e packages/towline-sim -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(OURS) | $(UV)
	$(INSTALL) -r requirements-dev.lock
	$(INSTALL) --no-deps -e packages/towline-once -e packages/towline-sim -e .
	@touch $@

$(VENV)/.fuzz: requirements-fuzz.lock $(VENV)/.dev
	$(INSTALL) -r requirements-fuzz.lock
	@touch $@

# The generator of clients, in an environment of its own below this one.
$(VENV)/.client: requirements-client.lock | $(UV)
	$(UV) venv --quiet --allow-existing $(VENV)/client
	VIRTUAL_ENV=$(VENV)/client $(UV) pip install --quiet -r requirements-client.lock
	@touch $@

$(VENV)/.bench: requirements-bench.lock $(VENV)/.dev
	$(INSTALL) -r requirements-bench.lock
	@touch $@
