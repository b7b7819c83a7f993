# make smoke: install and run the main job.  make test: install and run the tests.  See README.md.
PYTHON ?= python3.11
VENV ?= .venv
VENV_091 ?= .venv-091
BIN := $(VENV)/bin

# An environment in the folder $(1) from the complete pins of the stack that the target is named after (.cpu, .cpu-091).
# PyTorch's CPU build has an index of its own (TORCH_INDEX); verlbox/setup/install.py says what happens without it.
define environment
	$(PYTHON) -m venv $(1)
	$(1)/bin/python verlbox/setup/install.py $(patsubst .%,%,$(notdir $@)) --python $(1)/bin/python \
	  --pip "$(1)/bin/python -m pip --quiet" --work $(1)
	$(1)/bin/python -m pip check
	touch $@
endef

.PHONY: install smoke smoke-ppo smoke-091 test test-long test-containers lint lock

install: $(VENV)/.cpu

$(VENV)/.cpu: requirements-cpu.txt
	$(call environment,$(VENV))

$(VENV)/.dev: $(VENV)/.cpu requirements-dev.txt
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	touch $@

smoke smoke-ppo: install
	$(BIN)/python entrypoint.py run $@

test: lint
	$(BIN)/python -m pytest

# More minutes of real training: PPO with a critic, two steps on the full GSM8K, verl 0.9.1 where `make smoke-091` was.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -m long

# On the Docker engine that DOCKER_HOST names; docs/images.md has the variables for mirrors.
test-containers: $(VENV)/.dev
	$(BIN)/python -m pytest -m containers tests/containers

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The verl of the CUDA stack, without a GPU, in an environment of its own. Four steps show that every part works; the
# bounds of the recipe are for its sixteen.
smoke-091: $(VENV_091)/.cpu-091
	$(VENV_091)/bin/python entrypoint.py run smoke stack=cpu-091 train.steps=4 acceptance=[] --name $@

$(VENV_091)/.cpu-091: requirements-cpu-091.txt
	$(call environment,$(VENV_091))

lock: $(VENV)/.dev
	$(BIN)/python entrypoint.py pins lock cpu
	$(BIN)/python entrypoint.py pins lock cpu-091
	$(BIN)/uv pip compile requirements-dev.in --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
	  --no-header --no-annotate --quiet -o requirements-dev.txt
