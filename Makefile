# `make run` and `make test` do all their own set-up; the rest is for people who work on the project.
PYTHON ?= python3
ARGS ?= amp=o2 batch=512
VENV := .venv
BIN := $(VENV)/bin
# pip would compile every module of every package; Python compiles what is imported, once, if it may write it.
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test style lint faults mutants format bench golden conf site versions clean help

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^[^:]*:?([a-z-]+):.*## /\1\t/' | expand -t 16

run: $(VENV)/.run ## train here and now: make run ARGS="amp=o1 batch=256"
	@$(BIN)/python -m launcher $(ARGS)

test: $(VENV)/.test $(if $(TESTS),lint,style) ## everything that has to hold; parts that need the testbed are skipped where it is not up
	$(BIN)/python -m $(if $(TESTS),pytest $(TESTS),tests)

style: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/shellcheck launcher/*/*.sh

lint: style ## format, lint of Python and bash, types, import direction
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_import_direction.py

faults: $(VENV)/.test ## every fault many times, at random moments, on the testbed: make faults ROUNDS=20 [SEED=n]
	FAULT_ROUNDS=$(or $(ROUNDS),20) FAULT_SEED=$(SEED) LOG_MIB=100 TESTBED_REQUIRED=1 $(BIN)/python -m pytest --timeout=0 \
	  tests/launcher/slurm/test_faults.py tests/launcher/slurm/test_killed_servers.py tests/launcher/slurm/test_trainer.py \
	  tests/launcher/ssh/test_faults.py tests/launcher/ssh/test_cut_connections.py

mutants: $(VENV)/.test ## changes of one operator that no test catches: make mutants ROOM=launcher/ssh [TESTS=...] [PRELOAD=torch] [SAMPLE=n SEED=n]
	$(BIN)/python -m tests.mutants $(ROOM) $(if $(TESTS),--tests $(TESTS)) $(if $(PRELOAD),--preload $(PRELOAD)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

format: $(VENV)/.test ## put the code into the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(VENV)/.test ## write the golden files anew; review them as a diff
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests -k golden
	git --no-pager diff --stat -- tests

conf: $(VENV)/.test ## write conf/ anew from the settings classes: every key with its default and its help
	$(BIN)/python -m launcher.config.write_conf

site: $(VENV)/.test ## docs/ as a site, in build/site
	PYTHONPATH=. $(BIN)/python docs/site.py

versions: $(VENV)/.test ## libraries in three versions each; the wheel on Python 3.10 to 3.13, oldest packages and newest: uv, 18 GB
	$(BIN)/python -m tests.library_versions
	$(BIN)/python -m tests.versions

bench: $(VENV)/.test ## the benchmarks, each a ratio against something measured beside it
	$(BIN)/python -m benchmarks

clean: ## the environment and caches; runs are left alone
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Debian keeps venv's pip in a package of its own.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y python3-venv; } && $(PYTHON) -m venv $(VENV); } || \
	  { rm -rf $(VENV); echo "Python's venv is missing: sudo apt install python3-venv"; exit 1; }

# Where there is no GPU, the build for CPUs: what pip is configured to have, else PyTorch's own index of them. Any other
# failure, and machines with a GPU, take what pip's index has.
TORCH = $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX = https://download.pytorch.org/whl/cpu
define install_torch
	@{ ! command -v nvidia-smi >/dev/null && { $(PIP) 'torch==$(TORCH)+cpu' 2>/dev/null || \
	  $(PIP) --extra-index-url $(CPU_INDEX) 'torch==$(TORCH)+cpu' 2>/dev/null; }; } || $(PIP) torch
endef

# torch goes first and alone, at the pinned version, so that no other package pulls a different build of it.
$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what the job needs into $(VENV), once"
	$(install_torch)
	@$(PIP) --editable '.[torch]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what the tests need into $(VENV), once"
	$(install_torch)
	@$(PIP) --editable '.[torch,tensorflow,paddle,ssh,dev]'
	@touch $@ $(VENV)/.run

-include tests/testbed/testbed.mk
