# From a fresh clone, `make demo` and `make test` are all it takes: both set up .venv first, once.
# PYTHON=python3.12 make setup   chooses the interpreter that .venv is made from (3.10 or newer).

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# For `make chaos`; without a SEED it takes a random one and prints it.
MINUTES ?= 10
SEED ?=

HAS_IBVERBS = $(BIN)/python -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null
HAS_ETCD = command -v etcd >/dev/null
APT_GET := env DEBIAN_FRONTEND=noninteractive apt-get -qq -y
APT_INSTALL := apt-get update && apt-get install -y

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup libibverbs etcd demo test check bench chaos clean

help:
	@echo "make demo    start a Mooncake master here and watch a thousand callers ask it"
	@echo "make test    run the tests, against real masters"
	@echo "make check   lint, formatting, types"
	@echo "make bench   measure the engine beside the official client and a raw socket"
	@echo "make chaos   10 minutes of hundreds of callers while everything fails; MINUTES=1 SEED=7 change that"
	@echo "make setup   only make .venv and install into it (the others do it when needed)"
	@echo "make clean   remove .venv and everything else that was made or downloaded here"

setup: $(STAMP) libibverbs

demo: setup
	@$(BIN)/aiomooncake demo

test: setup etcd
	@$(BIN)/pytest

check: setup
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: setup
	@$(BIN)/python -m benchmarks

chaos: setup
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

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

# Shell that installs Debian's package $(1), which $(2) is in. Where it may not or cannot, it says how to, and exits.
define install_package
if ! command -v apt-get >/dev/null; then \
    echo "$(2) is missing: install your system's package with it (Debian calls it $(1))." >&2; exit 1; \
elif [ "$$(id -u)" = 0 ]; then as_root=; \
elif sudo -n true 2>/dev/null; then as_root="sudo -n"; \
else \
    echo "$(2) is missing, and installing it takes root: sudo sh -c '$(APT_INSTALL) $(1)'" >&2; exit 1; \
fi; \
echo "Installing $(1) ..."; \
log=$$(mktemp); \
if ! { $$as_root $(APT_GET) update && $$as_root $(APT_GET) install $(1); } >"$$log" 2>&1; then \
    cat "$$log" >&2; rm -f "$$log"; \
    echo "$(2) is missing and could not be installed. The command: $(APT_INSTALL) $(1)" >&2; exit 1; \
fi; \
rm -f "$$log"
endef

# Mooncake's binaries need libibverbs.so.1, also where there is no RDMA hardware.
libibverbs: $(STAMP)
	@if $(HAS_IBVERBS); then exit 0; fi; \
	$(call install_package,libibverbs1,libibverbs.so.1); \
	$(HAS_IBVERBS) || { echo "libibverbs1 is installed, but libibverbs.so.1 still does not load." >&2; exit 1; }

# Only tests need etcd, and they start their own: the service that Debian's package brings is not left running.
etcd:
	@if $(HAS_ETCD); then exit 0; fi; \
	( $(call install_package,etcd-server,etcd); \
	  if [ -d /run/systemd/system ]; then $$as_root systemctl --quiet disable --now etcd; fi; : ) || \
	echo "The tests that need etcd will be skipped." >&2
