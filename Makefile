# `make demo` and `make test` do all their own set-up, in .venv.
# PIP_ARGS passes options to pip, for example your own index.
PYTHON ?= python3
PIP_ARGS ?=
# Modules are compiled when they are first imported, which most never are.
PIP_QUIET := --quiet --disable-pip-version-check --no-compile
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-fast combining results docs lint format clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 18

install: $(READY)  ## create .venv and install leantrain with its tools

# The constraints keep a machine without a GPU from pulling the CUDA packages of another torch.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_QUIET) $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## train scikit-learn's digits at half the cost, beside plain training of that cost
	@$(BIN)/leantrain compare --data digits --train-limit 1000 --width 32 --epochs 5 --seeds 8 --out "$$(mktemp -d)/demo" --budgets 0.5

# One thread per test process: torch's threads of two processes would wait for each other.
test: $(READY)  ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long"

test-all: $(READY)  ## run the tests, also the few that take long: Ray, more kills and signals, more models
	$(BIN)/python -m pip install $(PIP_QUIET) $(PIP_ARGS) -c constraints.txt -e '.[long]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: $(READY)  ## run the tests that answer quickly: the library, without programs, browsers and several processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

combining: $(READY)  ## write the table of docs/combining.md anew
	LEANTRAIN_WRITE_DOCS=1 $(BIN)/python -m pytest tests/methods/test_chain.py -k table

results: $(READY)  ## put the papers' tables that were trained in runs/bench into docs/results.md
	$(BIN)/leantrain bench results

docs: $(READY)  ## build the documentation into build/site; what does not link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build
