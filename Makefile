PYTHON ?= python3
PROFILE ?= smollm2-135m-cpu
BIN := .venv/bin
CHECKED := serving tests scripts benchmarks

.DEFAULT_GOAL := help
.PHONY: help up check test soak lint setup-gateway setup-dev setup-engine catalog-snapshot lock clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

up: setup-engine ## a real model on a real vLLM behind the gateway, in the foreground
	@exec $(BIN)/serving up $(PROFILE) $(ARGS)

check: lint ## the fast loop: lint, types, layers, unit and flow tests
	@$(BIN)/python -m pytest -m "not engine and not soak" -q -n 4

test: lint setup-engine ## everything, with the real engine
	@$(BIN)/python -m pytest -m "not engine and not soak" -q -n 4
	@$(BIN)/python -m pytest -m "engine and not soak"

soak: setup-dev setup-engine ## the long runs
	@$(BIN)/python -m pytest -m soak -s

lint: setup-dev
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

setup-gateway:
	@$(PYTHON) scripts/setup.py gateway

setup-dev:
	@$(PYTHON) scripts/setup.py gateway dev

setup-engine:
	@$(PYTHON) scripts/setup.py gateway engine-cpu

catalog-snapshot: setup-engine ## write the snapshot of the installed vLLM's flags, variables and metrics
	@$(BIN)/python scripts/snapshot_vllm.py
	@$(BIN)/python scripts/snapshot_metrics.py

lock: ## resolve the dependencies anew into requirements/
	@$(PYTHON) scripts/lock.py

clean: ## remove the environment and all caches of the tools from the tree
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
