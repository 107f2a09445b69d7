# `make test` and `make demo` set up everything they need in .venv; nothing else is required than
# Python >= 3.11 with venv, and a package index.

VENV ?= .venv
PY := $(VENV)/bin/python
export OMP_NUM_THREADS ?= 1
export SGLANG_USE_CPU_ENGINE := 1
export TORCHDYNAMO_DISABLE := 1

.PHONY: setup test test-full test-lab check unit e2e demo demo-full contract verify-results clean

setup:
	@tools/setup_cpu.sh $(VENV)

## Everything CI runs: lint, format, types, unit and property tests, a server for each great claim.
## What starts servers runs one after the other, the rest on two cores (tests/README.md).
test: setup check
	$(PY) -m pytest -n 2 -m "not e2e and not lab and not full"
	$(PY) -m pytest -m smoke

## Every claim, with every architecture, release and setting.
test-full: setup check
	$(PY) -m pytest -n 2 -m "not e2e and not lab"
	$(PY) -m pytest -m "e2e and not lab"

## The benchmarks' own tests: their figures from planted windows, and dry runs with real servers.
test-lab: setup check verify-results
	$(PY) -m pytest -n 2 -m "lab and not e2e"
	$(PY) -m pytest -m "lab and e2e"

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

unit: setup
	$(PY) -m pytest -n 2 -m "not e2e and not contract and not lab"

e2e: setup
	$(PY) -m pytest -m smoke

## Real SGLang servers and a real model pair, four arms by turns; writes demo/report.html.
demo: setup
	$(PY) -m examples.demo.run

## Every static depth and both policies, more prompts.
demo-full: setup
	$(PY) -m examples.demo.run --full --prompts-per-phase 6

## Regenerates patches/contract.json and the preset host-default from the released wheels.
contract: setup
	$(PY) -m tools.write_contract

verify-results: setup
	$(PY) -m benchmarks.verify

clean:
	rm -rf $(VENV) .cache demo
