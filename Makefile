# Everything a fresh machine with Python >= 3.11 and make needs. `make help` lists the targets.
# Plain enough for GNU make 3.81 (macOS) and BSD make.

PYTHON ?= python3
EXTRAS ?= test,lint
VENV = .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
DOCS = $(VENV)/.installed-docs
# Two processes fill two cores, without threads of BLAS that spin; slow tests, some of which wait, take three. One that
# dies ends the run: in another one its test would be begun again, and again. Each takes its share of the list, and who
# is done takes from the end of another's: a module's tests stay together but for a few, and no worker is left alone
# with a long module.
PYTEST = OPENBLAS_NUM_THREADS=1 COMPILED_FOR_TESTS=$(COMPILED_FOR_TESTS) \
	$(BIN)/python -m pytest -n 2 --dist worksteal --max-worker-restart 0
# What JAX compiles in one test it reads in the next, and in the next run: see tests/compiled_programs.
COMPILED_FOR_TESTS ?= .jax_cache

.PHONY: help env demo test test-slow test-full lint docs wheel bench clean

help:
	@echo "make env        create $(VENV) with the package and its tools, at the versions in constraints.txt"
	@echo "make demo       all three theories against experiments: tables and pictures, in a few minutes"
	@echo "make test       the fast tests"
	@echo "make test-slow  the slow tests: reference numbers, theory against simulation"
	@echo "make test-full  all tests, also those that repeat another's proof at greater length: before a release"
	@echo "make lint       ruff, pyright, and which room may import which"
	@echo "make docs       the documentation site, into build/docs"
	@echo "make wheel      a wheel, into dist, installed into a fresh environment elsewhere and checked there"
	@echo "make bench      the benchmarks"
	@echo "make clean      remove $(VENV) and all caches"
	@echo ""
	@echo "Another interpreter: make env PYTHON=python3.12.  Other extras: make env EXTRAS=all."

env: $(STAMP)

# The build backend is installed first and used without isolation, so that its version is pinned too.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "asymptotix needs Python >= 3.11; name one with: make env PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/asymptotix demo

test: $(STAMP)
	$(PYTEST) --ignore tests/slow -m "not slow and not full and not gpu"

test-slow: $(STAMP)
	$(PYTEST) -n 3 --durations=30 --durations-min=10 -m "slow and not full and not gpu"

test-full: $(STAMP)
	$(PYTEST) -m "not gpu"

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo --no-cache

# Warnings are errors: a link that leads nowhere, an equation that cannot be drawn, a tutorial that fails.
docs: $(DOCS)
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--no-build-isolation --editable '.[docs]'
	@touch $(DOCS)

# The wheel's own dependencies only, in an environment outside the clone that is thrown away.
wheel: $(STAMP)
	rm -rf dist/*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@set -e; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; \
	$(PYTHON) -m venv "$$there"; \
	"$$there/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/asymptotix-*.whl; \
	check=$$(pwd)/tests/check_wheel.sh; cd "$$there"; sh "$$check" "$$there/bin"

bench: $(STAMP)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

clean:
	rm -rf $(VENV) build dist .jax_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
