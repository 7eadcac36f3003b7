# Two commands from a fresh machine: `make serve` and `make test`. `make help` lists the rest.

# The first that runs: a version manager's shims are there even for versions that are not.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c '$(FITS)' 2>/dev/null && command -v $$p && break; done)
VENV ?= .venv
MODEL ?= smollm2-135m
ARGS ?=
# PyTorch's own index of CPU-only wheels makes the installation some gigabytes smaller on Linux:
#   make serve TORCH_INDEX=<its address>
TORCH_INDEX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help serve chat test lint bars bench clean

help:  ## List the targets.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

serve: $(VENV)/.installed  ## Install, fetch the model, and serve it (MODEL=…, ARGS="--port 8080 …").
	$(BIN)/headrace serve $(MODEL) $(ARGS)

chat: $(VENV)/.installed  ## Talk to the server (ARGS="--url http://…").
	$(BIN)/headrace chat $(ARGS)

test: $(VENV)/.installed-dev  ## Run the tests (ARGS=… goes to pytest).
	$(BIN)/python -m pytest -m "not bars" --durations 20 --durations-min 5 $(ARGS)

lint: $(VENV)/.installed-dev  ## Check format, style, types and import layers.
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

bars: $(VENV)/.installed-dev  ## Run the long checks (about an hour on two cores).
	$(BIN)/python -m pytest -m bars $(ARGS)

bench: $(VENV)/.installed  ## Measure the engine and the limits of this machine.
	$(BIN)/headrace bench limits
	$(BIN)/headrace bench engine $(MODEL) $(ARGS)

clean:  ## Remove the environment and caches.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; set PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c '$(FITS)' || \
		{ echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13; set PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
ifneq ($(TORCH_INDEX),)
	$(PIP) install --index-url $(TORCH_INDEX) torch==2.13.0
endif
	@echo "Installing into $(VENV): PyTorch and some smaller packages, a minute or more the first time"
	$(PIP) install -q -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.installed
	$(PIP) install -q -e '.[dev]'
	@touch $@
