# Two commands: `make demo` and `make test`. Both create .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: help install demo test format lint types tests bench clean kernels

help:
	@echo "make demo    install, and show both levels in under three minutes"
	@echo "make test    install, then format check, lint, types, tests"
	@echo "make format  rewrite the code in the project's format"
	@echo "make bench   all benchmarks, quick form"
	@echo "make kernels remove compiled kernels, after editing one"
	@echo "make clean   remove all that was made, compiled kernels and $(VENV) too"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed; set PYTHON=...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/hadoppler demo

test: lint types tests

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy names a package after its folder, so it looks at an installed copy
types: $(STAMP)
	rm -rf build/types
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --package hadoppler

tests: $(STAMP)
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadgroup

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	for file in benchmarks/*.py; do $(BIN)/python $$file --quick || exit 1; done

# Numba notices a change of a kernel's own file only, not of a kernel that it calls from another one
kernels:
	find agents baselines envs real_system scripts -name '*.nb[ic]' -exec rm -f {} +

clean: kernels
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
