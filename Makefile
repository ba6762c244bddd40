# Targets for people and for CI; `make help` lists them.
#
#   PYTHON  interpreter to build on; each version gets a virtual environment of its own, .venv-<version>
#   TORCH   requirement for torch, e.g. TORCH=torch==2.13.0+cpu where that build is to be had
#   ARGS    further arguments: of pytest for the test targets, of `autotune start` for the demo

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1)
VENV := .venv-$(VERSION)
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# $(call pytest,MARKS): small tests beside each other, then one by one those whose own processes fill the machine; with
# ARGS just what they say.
LARGE := tests/conformance tests/integration tests/gpu
define pytest
	$(if $(ARGS),$(PYTEST) -m "$(1)" $(ARGS),$(PYTEST) -m "$(1)" tests $(LARGE:%=--ignore=%) --numprocesses 2)
	$(if $(ARGS),,$(PYTEST) -m "$(1)" $(LARGE) --durations=25 --durations-min=5)
endef

# Megatron-Bridge needs Python 3.12, and is installed without what it asks for: that wants a GPU.
BRIDGE := $(if $(filter 3.12,$(VERSION)),megatron-bridge==0.6.2)

.DEFAULT_GOAL := help
.PHONY: help demo drafts environment test test-trial test-slow lint bench clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.demo ## tune a tiny MoE model on this machine's CPU and export its policy (again: print the result)
	@AUTOTUNE_HOME=.demo $(BIN)/autotune start --model tiny-moe --cluster local $(ARGS)
	@echo "first: . $(BIN)/activate" >&2

drafts: $(VENV)/.dev ## write the predicted policies in policies/drafts again
	$(BIN)/python -m autotune.export.drafts policies/drafts

environment: $(VENV)/.dev ## only make the virtual environment that the tests need

test: lint ## lint, types and the whole test suite but what is marked slow
	$(call pytest,not slow and not bench)

test-trial: $(VENV)/.dev ## only the tests on Megatron-Core and Megatron-Bridge, e.g. PYTHON=python3.12 for newer releases
	$(call pytest,(trial or bridge) and not head and not slow and not bench)

test-slow: $(VENV)/.dev ## only the tests marked slow
	$(PYTEST) -m slow $(ARGS)

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev ## measure what a trial costs beside its own training
	$(PYTEST) tests/bench -m bench -s $(ARGS)

clean: ## remove virtual environments, caches and the demo's studies
	rm -rf .venv-* .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo: EXTRAS := all
$(VENV)/.dev: EXTRAS := all,dev$(BRIDGE:%=,bridge)

$(VENV)/.demo $(VENV)/.dev: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is not a Python >= 3.11: $(VERSION)"; echo "hint: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; } >&2
	@echo "installing moe-autotune[$(EXTRAS)] into $(VENV) (minutes, once)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check "$(TORCH)" --editable ".[$(EXTRAS)]"
	@$(if $(and $(BRIDGE),$(findstring dev,$@)),$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps $(BRIDGE))
	@touch $@
