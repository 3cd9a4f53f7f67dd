# From a fresh clone, `make demo` and `make test` are all it takes: both set up .venv first, once.
# PYTHON=python3.12 make setup   chooses the interpreter that .venv is made from (3.10 or newer).

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

HAS_IBVERBS = $(BIN)/python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null
APT_GET := env DEBIAN_FRONTEND=noninteractive apt-get -qq -y
INSTALL_IBVERBS := apt-get update && apt-get install -y libibverbs1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup libibverbs demo test check bench clean

help:
	@echo "make demo    start a Mooncake master here and watch a thousand callers ask it"
	@echo "make test    run the tests, against real masters"
	@echo "make check   lint, formatting, types"
	@echo "make bench   measure the engine beside the official client and a raw socket"
	@echo "make setup   only make .venv and install into it (the others do it when needed)"
	@echo "make clean   remove .venv and everything else that was made or downloaded here"

setup: $(STAMP) libibverbs

demo: setup
	@$(BIN)/aiomooncake demo

test: setup
	@$(BIN)/pytest

check: setup
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: setup
	@$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv without a working pip is the rest of an interrupted setup: make it anew.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "aiomooncake needs Python 3.10 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PIP) --version >/dev/null 2>&1 || { echo "Making .venv ..."; $(PYTHON) -m venv --clear .venv; }
	@echo "Installing aiomooncake and its tools into .venv (a minute or two, only when pyproject.toml changed) ..."
	@$(PIP) install --upgrade pip
	@$(PIP) install --editable '.[dev]'
	@touch $@

# Mooncake's binaries need libibverbs.so.1, also where there is no RDMA hardware.
libibverbs: $(STAMP)
	@if $(HAS_IBVERBS); then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
	    echo "libibverbs.so.1 is missing: install your system's libibverbs package (Debian calls it libibverbs1)." >&2; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then as_root=; \
	elif sudo -n true 2>/dev/null; then as_root="sudo -n"; \
	else \
	    echo "libibverbs.so.1 is missing, and installing it takes root: sudo sh -c '$(INSTALL_IBVERBS)'" >&2; exit 1; \
	fi; \
	echo "Installing libibverbs1 ..."; \
	log=$$(mktemp); \
	if ! { $$as_root $(APT_GET) update && $$as_root $(APT_GET) install libibverbs1; } >"$$log" 2>&1; then \
	    cat "$$log" >&2; rm -f "$$log"; \
	    echo "libibverbs.so.1 is missing and could not be installed. The command: $(INSTALL_IBVERBS)" >&2; exit 1; \
	fi; \
	rm -f "$$log"; \
	$(HAS_IBVERBS) || { echo "libibverbs1 is installed, but libibverbs.so.1 still does not load." >&2; exit 1; }
