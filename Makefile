# Every target sets up what it needs: `make demo` or `make test` is all that a fresh clone needs,
# with Python 3.11 or newer on the machine.
#
#   PYTHON   the interpreter to make the environment with      make test PYTHON=python3.13
#   VENV     where the environment lives                       make test VENV=.venv-3.13 ...
#   JAX      another JAX than the newest that fits             make test JAX="jax==0.10.2 jaxlib==0.10.2"
#   WORKERS  how many processes run the tests                  make test WORKERS=4
#   N        how many programs to fuzz with, from SEED         make fuzz N=10000 SEED=0
#   ARGS     handed to pytest or to the benchmarks             make test ARGS="-k lesson"

PYTHON ?= python3
VENV ?= .venv
JAX ?=
# Measured: two processes use the processor no longer than one does, so with two free cores the
# tests take half the time. More of them on a small machine only wait for each other.
WORKERS ?= 2
ARGS ?=
N ?= 1000
SEED ?= 0
START ?= 0

BIN := $(VENV)/bin
# The stamp says for which JAX the environment was installed, so that another wish installs again.
STAMP := $(VENV)/.installed$(if $(JAX),-$(shell printf %s '$(JAX)' | tr -c 'A-Za-z0-9.' '-'))

.PHONY: help demo test check format bench fuzz clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: $(STAMP)  ## fit the Nile model with our loops; prints the result and draws it
	@$(BIN)/python notebooks/nile/demo.py

test: $(STAMP)  ## all tests: unit, rules, lesson, doctests, README, notebooks
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

check: $(STAMP)  ## linter, formatter and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

format: $(STAMP)  ## let ruff mend and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)  ## our times beside jax.lax's, and Equinox's where that can be had
	@$(BIN)/python -c 'import equinox' 2>/dev/null || \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check '.[bench]' || true
	@$(BIN)/python -m tests.benchmarks $(ARGS)

fuzz: $(STAMP)  ## N random programs on our loops, JAX's and Python's, from SEED; START goes on
	@$(BIN)/python -m tests.properties.fuzz --programs $(N) --seed $(SEED) --start $(START)

clean:  ## remove the environment and all caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
	find checks diagnostics loops notebooks tests -name __pycache__ -prune -exec rm -rf {} +

# Once for each pyproject.toml: the stamp is newer than it until it changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "carryloops needs Python 3.11 or newer; '$(PYTHON)' is not. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV) with `$(PYTHON) --version`"; \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; }
	@echo "installing carryloops[test,notebooks] $(JAX) into $(VENV) (once; a few minutes on a slow line)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[test,notebooks]' $(JAX)
	@$(BIN)/python -c 'import jax, platform; print("ready: Python", platform.python_version(), "with jax", jax.__version__)'
	@rm -f $(VENV)/.installed*
	@touch $(STAMP)
