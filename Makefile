# Two commands do all the set-up by themselves: `make serve` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# After a change in one of these, what is installed is installed again.
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard csrc/*)

.PHONY: serve test test-full test-long soak soak-storm soak-steps fidelity bench check clean help

help:
	@echo "make serve      install what serving needs, fetch the default model, serve it"
	@echo "make test       install what testing needs, check and test"
	@echo "make test-full  the long tests too, against transformers (installs torch)"
	@echo "make test-long  golden text under all combinations and all ways of preemption; hours"
	@echo "make soak       a storm of clients over a server, and a million random steps under each row of"
	@echo "                options; hours. One of both: make soak-storm, make soak-steps; STORM=SECONDS"
	@echo "make fidelity   what simulations predict of recorded runs, as a table; ARGS=TRACES"
	@echo "make bench      against peers, the floor, mixed steps; benchmarks/README.md has the variables"
	@echo "make check      format, lint, types, import contracts; changes nothing"

serve: $(VENV)/.serve
	$(BIN)/everbatch serve $(ARGS)

test: $(VENV)/.test check
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not full and not oracle and not long" $(ARGS)

test-full: $(VENV)/.oracle
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "full or oracle" $(ARGS)

test-long: $(VENV)/.test
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m long $(ARGS)

soak: soak-storm soak-steps

soak-storm: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m load.run $(STORM)

soak-steps: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python tests/property/soak.py $(ARGS)

fidelity: $(VENV)/.serve
	PYTHONPATH=benchmarks $(BIN)/python -m fidelity.table $(ARGS)

# Peers that no variable names are skipped; floor and mixed steps need none. All three run.
BENCH_PEERS = $(foreach name,openvino-python openvino-model llama-bench llama-model llama-1b \
	openvino-llama-1b,$(if $($(call upper,$(name))),--$(name) $($(call upper,$(name)))))
upper = $(shell echo $(1) | tr a-z- A-Z_)

bench: $(VENV)/.serve
	@test -n "$(MODEL)" || { echo "name a model: make bench MODEL=DIR"; exit 2; }
	status=0; \
	$(BIN)/python benchmarks/bench_peers.py --model $(MODEL) $(BENCH_PEERS) $(ARGS) || status=$$?; \
	$(BIN)/python benchmarks/bench_floor.py $(MODEL) --json benchmarks/results/floor.json || status=$$?; \
	$(BIN)/python benchmarks/bench_mixed.py $(MODEL) --json benchmarks/results/mixed.json || status=$$?; \
	exit $$status

check: $(VENV)/.test
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/mypy src
	$(BIN)/lint-imports --no-cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(VENV)/bin/python $(BUILT_FROM)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

# Installs what serving needs, too: the kernels are compiled once, not by .serve and again here.
$(VENV)/.test: $(VENV)/bin/python $(BUILT_FROM)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $(VENV)/.serve $@

# torch is pinned and installed first: anything else could draw in a build for GPUs.
$(VENV)/.oracle: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "transformers==5.24.0" accelerate
	touch $@

clean:
	rm -rf $(VENV) build dist
