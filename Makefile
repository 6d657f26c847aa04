# make demo | test | lab | lint | bench | clean. The first of them makes .venv; see tools/make-venv.sh.

.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
NOTEBOOKS := $(wildcard notebooks)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1

.PHONY: help demo test lab lint bench clean

help:
	@echo 'make demo    the bundled RWKV-7 through every station; leaves a report in results/runs/'
	@echo 'make test    the test suite (PYTEST_ARGS="-k name" or "-m slow" to choose)'
	@echo 'make lab     JupyterLab on this machine only, with a token'
	@echo 'make lint    ruff on code and notebooks, pyright'
	@echo 'make bench   ratios against peers'
	@echo 'make clean   remove .venv and caches; results stay'

$(READY): pyproject.toml constraints.txt tools/make-venv.sh
	@sh tools/make-venv.sh $(VENV)
	@touch $@

demo: $(READY)
	@$(PY) -m rwkvlab demo

# Two workers, one thread each: faster on two cores than two workers that fight over them.
# Tests of one file share a worker, so that what a module's fixture compiles is compiled once.
test: export OMP_NUM_THREADS := 1
test: export MPLBACKEND := Agg
test: $(READY)
	@$(PY) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

# Jupyter refuses to run as root unless told; in a container there is nobody else.
lab: $(READY)
	@exec $(PY) -m jupyter lab --ip=127.0.0.1 $(if $(filter 0,$(shell id -u)),--allow-root) $(NOTEBOOKS)

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyright --pythonpath $(PY)

bench: $(READY)
	@$(PY) -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find rwkvlab tests benchmarks -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true
