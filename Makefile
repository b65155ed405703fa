# Variables of `make serve`
PORT ?= 30000
MODEL ?=
CACHE ?= hybrid-marconi
CONFIG ?=
ARGS ?=

# Of `make test` and `make patches-check`: processes that run tests
WORKERS ?= 2

# Of `make soak`
MINUTES ?= 10

# Of `make paper`
TRACES ?=

# Where and with what the environment is built
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMALL_MODEL := .model
# Pools of the small model: without them SGLang gives it most of the memory.
SMALL_MODEL_ARGS := --max-total-tokens 262144 --max-mamba-cache-size 256

# pip does not compile; what is used is compiled at its first import, unless this forbids it:
# then each of a server's three processes takes half a minute more, at every start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install serve test matrix soak mutants patches-check lint bench paper clean

help:
	@echo 'make serve     run a server in the foreground: PORT, MODEL (default: a small model made'
	@echo '               here), CACHE (empty: the cache built into SGLang), CONFIG (JSON of'
	@echo '               --cache-config), ARGS (further flags of the server)'
	@echo 'make install   build the environment: VENV (.venv), PYTHON (python3)'
	@echo 'make test      run the tests: WORKERS (2), ARGS (further arguments of pytest)'
	@echo 'make matrix    run the server tests on every combination of flags; ARGS="-k page_64" for some,'
	@echo '               ARGS=--stepwise to go on where the last run stopped'
	@echo 'make soak      keep one server after another under load and compare every answer: MINUTES (10)'
	@echo 'make mutants   see deliberate bugs caught by the tests; ARGS="part of a name" for some'
	@echo 'make patches-check'
	@echo '               apply the series for SGLang (patches/) to its package and run its tests'
	@echo 'make lint      check style and types'
	@echo 'make bench     run the benchmarks'
	@echo 'make paper     rerun the experiments of the paper: TRACES (folder of stored traces)'
	@echo 'make clean     remove what was generated, except the environment'

install: $(STAMP)

$(STAMP): setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[sglang,bench,dev]'
	@touch $@

$(SMALL_MODEL)/.complete: $(wildcard sglang_hybrid/model/*.py) | $(STAMP)
	$(BIN)/hybrid-marconi make-model $(SMALL_MODEL)
	@touch $@

ifeq ($(strip $(MODEL)),)
serve: export SERVED_MODEL := $(SMALL_MODEL)
serve: MODEL_ARGS := $(SMALL_MODEL_ARGS)
serve: $(SMALL_MODEL)/.complete
else
serve: export SERVED_MODEL := $(MODEL)
endif

# Values reach the shell through the environment, so that quotes in them are not touched.
serve: export CACHE := $(CACHE)
serve: export CONFIG := $(CONFIG)
serve: $(STAMP)
	@set -- --model-path "$$SERVED_MODEL" --port '$(PORT)' --enable-cache-report $(MODEL_ARGS); \
	if [ -n "$$CACHE" ]; then set -- "$$@" --cache "$$CACHE"; fi; \
	if [ -n "$$CONFIG" ]; then set -- "$$@" --cache-config "$$CONFIG"; fi; \
	exec $(BIN)/python -m sglang.launch_server "$$@" $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest tests -n $(WORKERS) --no-loadscope-reorder -p no:benchmark $(ARGS)

matrix: $(STAMP)
	$(BIN)/python -m pytest tests/matrix -m 'matrix or not matrix' $(ARGS)

soak: $(STAMP)
	SOAK_MINUTES='$(MINUTES)' $(BIN)/python -m pytest tests/soak -m soak $(ARGS)

mutants: $(STAMP)
	$(BIN)/python tests/mutants/mutation_check.py $(if $(ARGS),'$(ARGS)')

patches-check: $(STAMP)
	$(BIN)/python -m pytest tests/patches -m patches -n $(WORKERS) --no-loadscope-reorder \
		-p no:benchmark $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m pytest bench $(ARGS)

paper: $(STAMP)
	$(BIN)/python -m bench.paper $(if $(TRACES),--traces '$(TRACES)') $(ARGS)

clean:
	rm -rf $(SMALL_MODEL) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .benchmarks
	find sglang_hybrid kernels tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
