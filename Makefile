PYTHON ?= python3
PROFILE ?= smollm2-135m-cpu
BIN := .venv/bin
CHECKED := serving tests scripts benchmarks

.DEFAULT_GOAL := help
.PHONY: help up check test soak fuzz lint catalog image setup-gateway setup-dev setup-engine setup-clients setup-tools setup-quantizer catalog-snapshot lock clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

up: setup-engine ## a real model on a real vLLM behind the gateway, in the foreground
	@exec $(BIN)/serving up $(PROFILE) $(ARGS)

check: lint ## the fast loop: lint, types, layers, unit and flow tests but the slow ones
	@$(BIN)/python -m pytest -m "not slow and not engine and not clients and not soak and not chart and not cluster" -q -n 4

test: lint setup-clients setup-tools setup-quantizer ## everything: the real engine, other people's clients, the chart and, where KUBECONFIG names one, a cluster
	-@$(BIN)/python -m tests.flow.openai_schema
	@$(BIN)/python -m pytest -m "not engine and not clients and not soak" -q -n 4
	@$(BIN)/python -m pytest -m "(engine or clients) and not soak"

soak: setup-dev setup-engine setup-quantizer ## the long runs
	@$(BIN)/python -m pytest -m soak -s

fuzz: setup-dev ## ten minutes of made-up requests (FUZZ_SECONDS=… or FUZZ_INPUTS=…, FUZZ_SEED=… repeats a run)
	@$(BIN)/python -m tests.fuzz.run

lint: setup-dev
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

catalog: setup-gateway ## render profiles, pod programs and settings into the chart
	@PYTHONPATH=. $(BIN)/python scripts/render_chart.py

image: ## build the gateway's image with docker
	@docker build --file Dockerfile.gateway --tag serving-gateway:$$(sed -n 's/^appVersion: //p' helm/serving/Chart.yaml) .

setup-gateway:
	@$(PYTHON) scripts/setup.py gateway

setup-dev:
	@$(PYTHON) scripts/setup.py gateway dev

setup-engine:
	@$(PYTHON) scripts/setup.py gateway engine-cpu

setup-clients: setup-engine
	@$(PYTHON) scripts/setup_clients.py

setup-tools: ## bring Helm, Prometheus, Redis and what builds images into the cache, for the tests
	@$(PYTHON) scripts/tools.py

setup-quantizer: setup-engine ## bring llm-compressor into the cache, for `serving quantize`
	@$(PYTHON) scripts/setup_quantizer.py

catalog-snapshot: setup-engine ## write the snapshot of the installed vLLM's flags, variables and metrics
	@$(BIN)/serving snapshot
	@$(BIN)/serving snapshot --families

lock: ## resolve the dependencies anew into requirements/
	@$(PYTHON) scripts/lock.py
	@$(PYTHON) scripts/lock_clients.py

clean: ## remove the environment and all caches of the tools from the tree
	@rm -rf .venv .venv-clients tests/clients/node/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
