# Needs python3 with venv, a C++ compiler and make. All else goes into .venv.
PYTHON ?= python3
# The one that is there, or the oldest that is supported and made for this Python;
# `make build TORCH=...` brings another.
OLDEST_TORCH = $(shell $(PYTHON) -c "import sys; print('2.13.0' if sys.version_info < (3, 15) else '2.15.0')")
TORCH ?= $(or $(patsubst .venv/torch-%,%,$(firstword $(wildcard .venv/torch-*))),$(OLDEST_TORCH))

BIN := .venv/bin
TORCH_INSTALLED := .venv/torch-$(TORCH)
BUILT := .venv/built-torch-$(TORCH)
CXX_FILES := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: help demo build test sanitize conformance lint bench bench-quick bench-gate clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(BUILT) ## train on handwritten digits with gloo and with hvd, side by side (2 ranks)
	$(BIN)/python examples/demo.py

build: $(BUILT) ## .venv with torch and an editable build

# Two files at a time: tests wait more than they compute.
test: $(BUILT) ## the tests, but for those that build the package again
	$(BIN)/pytest -m "not slow" --numprocesses 2 --dist loadfile

sanitize: $(BUILT) ## the model tests of engine, shared memory and TCP under ThreadSanitizer, and under Address and UB
	$(MAKE) -C tests/model PYTHON=$(abspath $(BIN)/python) -j $(shell nproc) $@

conformance: $(BUILT) ## PyTorch's own distributed test suite, 3 ranks
	$(BIN)/python -m tests.conformance.run --world-size 3

lint: $(BUILT) ## ruff, mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES) $(wildcard tests/*/*.h tests/*/*.cpp benchmarks/*/*.cpp)

bench: $(BUILT) ## the benchmarks against stock gloo
	$(BIN)/pytest benchmarks

bench-quick: $(BUILT) ## fewer of them, in 3 minutes; a wrong result fails, a time does not
	$(BIN)/pytest benchmarks --quick

GATE := $(BIN)/pytest --seconds 4 --json out/gate
SMALL_BENCHES := benchmarks/test_all_reduce.py benchmarks/test_fusion.py benchmarks/test_ddp.py

bench-gate: $(BUILT) ## are the ratios kept that benchmarks/promises.py has of README? Takes root and a quiet machine
	$(GATE)/shm.jsonl --quick $(SMALL_BENCHES) benchmarks/test_verbs.py
	$(GATE)/tcp.jsonl --quick $(SMALL_BENCHES) --transport tcp
	$(GATE)/fusion.jsonl benchmarks/test_fusion.py -k in_flight --transport tcp \
	  --baseline hvd:transport=tcp,fusion_threshold=0
	$(BIN)/python -m benchmarks.mpi --quick --bind --json out/gate/mpi.jsonl
	$(GATE)/1gbit.jsonl benchmarks/test_compression.py --link 1gbit \
	  -k "(16MB or 64MB or ddp) and not hook"
	$(GATE)/1gbit-4.jsonl benchmarks/test_compression.py --link 1gbit --world-size 4 \
	  -k "(16MB or 64MB or ddp and int8) and not hook"
	$(GATE)/2x1gbit.jsonl $(SMALL_BENCHES) --link 2x1gbit --world-size 2 --world-size 4 \
	  -k "ddp_step or sync and not async and (1MB or 4MB or 16MB or 64MB)"
	$(BIN)/python -m benchmarks.gate out/gate/*.jsonl

clean: ## remove what was built, keep what was downloaded
	rm -rf build dist *.egg-info torch_hvd/*.so torch_hvd/_build.py .venv/built-*
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	find . -path ./.venv -prune -o -name __pycache__ -exec rm -rf {} +

$(TORCH_INSTALLED):
	$(PYTHON) -m venv .venv
	$(BIN)/pip install torch==$(TORCH) "setuptools>=77" ninja
	rm -f .venv/built-* .venv/torch-*
	touch $@

$(BUILT): $(TORCH_INSTALLED) pyproject.toml setup.py $(wildcard build_backend/*.py) $(CXX_FILES)
	$(BIN)/pip install --no-build-isolation --editable ".[test,bench,lint]"
	touch $@
