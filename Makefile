PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
OLDEST := .venv-oldest
OLDEST_PYTHON ?= $(shell python3.10 -c 'print("python3.10")' 2>/dev/null || \
	echo $(PYTHON))
INSTALL_OLDEST := $(OLDEST)/bin/python -m pip install --quiet \
	--constraint constraints-oldest.txt
PEERS := .venv-peers
INSTALL_PEERS := $(PEERS)/bin/python -m pip install --quiet \
	--constraint constraints-peers.txt
ARGS ?= --help

.PHONY: demo test test-slow test-all test-oldest test-numerics test-numerics-quick docs \
	peers dist lint clean

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
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: lint
	$(PYTEST) -m 'not slow'

# What takes long and rarely fails: whole benchmarks, long trainings, killed processes.
test-slow: $(VENV)/.test
	$(PYTEST) -m slow

test-all: test test-slow

# The same with the oldest supported versions, in an environment of their own.
test-oldest: $(OLDEST)/.test
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest --numprocesses auto \
		--dist worksteal -p no:cacheprovider

$(OLDEST)/.test: setup.cfg pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST)
	$(INSTALL_OLDEST) torch
	$(INSTALL_OLDEST) --editable '.[test]'
	touch $@

# The tests that compute, under one setting of formats, kernels, threads and seeds after
# the other; and under several at once.
test-numerics: $(VENV)/.test
	$(BIN)/python tests/numerics.py

test-numerics-quick: $(VENV)/.test
	$(BIN)/python tests/numerics.py quick

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# Other packages on the same images, in an environment of their own, as ARGS say.
peers: $(PEERS)/.peers
	$(PEERS)/bin/python benchmarks/bench_peers.py $(ARGS)

$(PEERS)/.peers: setup.cfg pyproject.toml constraints-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(INSTALL_PEERS) torch
	$(INSTALL_PEERS) anomalib --editable '.[images]'
	touch $@

# A wheel and an sdist, installed into an environment of their own and used there.
dist:
	$(PYTHON) tests/check_dist.py dist

clean:
	rm -rf $(VENV) $(OLDEST) $(PEERS) build dist *.egg-info docs/_build docs/generated docs/auto_examples
