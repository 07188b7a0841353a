PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-numerics test-numerics-quick docs lint clean

# Each stamp is one set of extras, so that every target installs just what it needs.
$(VENV)/.%: setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable '.[$*]'
	touch $@

demo: $(VENV)/.plot
	$(BIN)/python -m skpatchsvdd demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# A process for each core, and a thread for each process.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

# The tests that compute, under one setting of formats, kernels, threads and seeds after
# the other; and under several at once.
test-numerics: $(VENV)/.test
	$(BIN)/python tests/numerics.py

test-numerics-quick: $(VENV)/.test
	$(BIN)/python tests/numerics.py quick

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build docs/generated docs/auto_examples
