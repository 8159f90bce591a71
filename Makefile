# Two commands are enough: `make run` and `make test`. Both set up everything they need.
PYTHON ?= python3
BIN := .venv/bin
SHELL := /bin/bash
SET_UP := requirements/uv.txt requirements/build.txt pyproject.toml scripts/setup.sh
.DEFAULT_GOAL := help
# Hundreds of processes are started from .venv: let them keep what Python makes of the sources.
unexport PYTHONDONTWRITEBYTECODE

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/run.stamp  ## set up, then chat with the embedded model; without a terminal it answers one question
	@if [ -t 0 ]; then $(BIN)/lamina chat; \
	else echo "What is the capital of France?" | LAMINA_MAX_TOKENS=64 $(BIN)/lamina chat; fi

test: .venv/dev.stamp .venv-litellm/litellm.stamp .venv-bench/bench.stamp  ## set up, then run all tests
	$(BIN)/python -m pytest -n 3 --dist worksteal

check: .venv/dev.stamp  ## ruff, pyright strict, the architecture test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/test_architecture.py

bench: .venv-bench/bench.stamp $(if $(filter gateway,$(or $(ROW),gateway)),.venv-proxy/proxy.stamp)  ## all benchmarks beside their peers; ROW=trim runs one
	@.venv-bench/bin/python -m bench $(ROW)

fuzz: .venv/dev.stamp  ## a million random histories through the trimmer and three grammars; N=… and PEERS=1
	@if [ -n "$(PEERS)" ]; then $(MAKE) -s .venv-bench/bench.stamp && .venv-bench/bin/python -m bench.fuzz --peers $(if $(N),--histories $(N)); \
	else $(BIN)/python -m bench.fuzz $(if $(N),--histories $(N)); fi

soak: .venv/dev.stamp  ## the fault tests at length, at most 90 minutes, goes on where it was; QUICK=1, N=10, ONLY=R1,R9, FRESH=1
	@$(BIN)/python -m scripts.soak $(if $(QUICK),--times 1,$(if $(N),--times $(N))) $(if $(ONLY),--only $(ONLY)) \
	$(if $(FRESH),--fresh)

requirements: .venv/dev.stamp  ## run the tests that carry a requirement's number and write docs/evidence/requirements.md
	@$(BIN)/python -m scripts.requirements

walk: .venv/dev.stamp  ## trace one streamed request through a gateway and write its path into docs/design/request.md
	@$(BIN)/python -m scripts.walk --page

fix: .venv/dev.stamp  ## let ruff format and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: .venv/dev.stamp  ## build the wheel and the source archive into dist/
	$(BIN)/python -m hatchling build -d dist

pins: .venv/dev.stamp  ## write requirements/*.txt again from pyproject.toml, the newest of everything; KEEP=1 keeps versions
	@bash scripts/pins.sh $(if $(KEEP),,--upgrade)

clean:  ## remove the environments and caches
	rm -rf .venv .venv-bench .venv-proxy .venv-litellm .cache/uv .cache/pip .pytest_cache .ruff_cache .hypothesis

.venv/%.stamp: requirements/%.txt $(SET_UP)
	@PYTHON=$(PYTHON) bash scripts/setup.sh .venv $*

.venv-bench/%.stamp: requirements/%.txt $(SET_UP)
	@PYTHON=$(PYTHON) bash scripts/setup.sh .venv-bench $*

.venv-proxy/%.stamp: requirements/%.txt $(SET_UP)
	@PYTHON=$(PYTHON) bash scripts/setup.sh .venv-proxy $*

.venv-litellm/%.stamp: requirements/%.txt $(SET_UP)
	@PYTHON=$(PYTHON) bash scripts/setup.sh .venv-litellm $*

.PHONY: help run test check bench fuzz soak requirements walk dist fix pins clean
