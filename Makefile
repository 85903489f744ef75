# Every recipe needs only make and Python 3.11 or newer; what else it needs, it installs into VENV.
#   make test PYTHON=python3.13 VENV=.venv-3.13     for another interpreter

PYTHON ?= python3
VENV ?= .venv
DEMO ?= fixtures/recorded/ddp-dataloader-stall
UV_VERSION := 0.13.8

BIN := $(VENV)/bin
RUN := $(BIN)/python
NATIVE := tracekit/libtracekit_kineto.so
PINS := $(VENV)/.stamp-pins
READY := $(VENV)/.stamp-project
PIP := $(RUN) -m pip --disable-pip-version-check --no-input -qq
COMPILE := uv pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env native demo demo-fleet test test-all check docs golden pictures bench accuracy bundle check-wheels pins clean

help:  ## list the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The pins may drop a package, so new pins begin with an empty environment. A folder that is no
# environment is refused first: --clear would empty it.
$(PINS): requirements-dev.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "error: no '$(PYTHON)' here; tracekit needs Python 3.11 or newer" >&2; \
		echo "hint: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: tracekit needs Python 3.11 or newer, and '$(PYTHON)' is older:" \
			"$$($(PYTHON) --version 2>&1)" >&2; \
		echo "hint: make PYTHON=python3.12" >&2; exit 2; }
	@if [ -e $(VENV) ] && [ ! -e $(VENV)/pyvenv.cfg ]; then \
		echo "error: $(VENV) exists and is no Python environment" >&2; \
		echo "hint: make VENV=another-folder" >&2; exit 2; fi
	@echo "installing the pinned packages into $(VENV)" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes --only-binary=:all: -r requirements-dev.txt
	@touch $@

$(READY): $(PINS) pyproject.toml
	@$(PIP) install --no-deps --no-index --no-build-isolation -e .
	@touch $@

env: $(READY)  ## the environment, from pinned versions

# Optional: whatever reads traces takes it where it lies, and Python reads them where it does not.
native: $(NATIVE)  ## the native reader of Kineto traces; needs cargo (Rust 1.80), nothing else

$(NATIVE): native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)
	@command -v cargo >/dev/null || { \
		echo "error: no 'cargo' here; the native reader needs Rust 1.80 or newer" >&2; \
		echo "hint: everything else works without it" >&2; exit 2; }
	@cargo build --quiet --release --locked --offline --manifest-path native/Cargo.toml
	@cp native/target/release/$(@F) $@.new && mv $@.new $@

demo: $(READY)  ## diagnose a recorded slow job (DEMO=path for another)
	@rm -rf demo-out && mkdir demo-out
	@echo '$$ tracekit diagnose $(DEMO)'
	@$(BIN)/tracekit diagnose $(DEMO)
	@$(BIN)/tracekit ingest $(DEMO) --run demo-out/run
	@$(BIN)/tracekit diagnose demo-out/run --format text -o demo-out/report.txt
	@$(BIN)/tracekit diagnose demo-out/run --format json -o demo-out/report.json
	@$(BIN)/tracekit diagnose demo-out/run --format html -o demo-out/report.html
	@echo
	@echo 'its traces            $(DEMO)'
	@echo 'this report           demo-out/report.txt'
	@echo 'the same as a page    file://$(CURDIR)/demo-out/report.html'
	@echo 'the same as JSON      demo-out/report.json'
	@echo 'the tables behind it  demo-out/run'
	@echo 'look further          $(BIN)/tracekit query --list'

demo-fleet: $(READY)  ## roll three small nights up, judge thirty simulated ones, and write the site
	@PYTHONPATH=tests $(RUN) -m fleet_demo demo-out/fleet

# By file, so that what a file's tests share is made once. The tests start fifty processes, each of
# which compiles all of tracekit again where nothing may be kept.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: $(READY)  ## run the tests but for long soaks (ARGS="-k name" for some)
	@$(RUN) -m pytest -n auto --dist loadfile -m "not slow" $(ARGS)

test-all: $(READY)  ## run all tests, as CI does
	@$(RUN) -m pytest -n auto --dist loadfile $(ARGS)

check: $(READY)  ## lint, format, types, layers, generated documents
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(RUN) -m tracekit.docs --check

docs: $(READY)  ## write the generated documents again
	@$(RUN) -m tracekit.docs

golden: $(READY)  ## rewrite the expected outputs of the tests; then read the diff
	@TRACEKIT_UPDATE_GOLDEN=1 $(RUN) -m pytest $(ARGS)

pictures: $(READY)  ## make the pictures of README.md and docs/ again; needs a Chromium
	@PYTHONPATH=tests $(RUN) .ci/pictures.py

bench: $(READY) .venv-bench/.stamp  ## measure speed and memory beside the peers
	@$(RUN) tests/benchmarks/run.py --peers $(CURDIR)/.venv-bench/bin/python $(ARGS)

.venv-bench/.stamp: requirements-bench.txt
	@$(PYTHON) -m venv --clear .venv-bench
	@.venv-bench/bin/python -m pip --disable-pip-version-check -q install -r $<
	@touch $@

accuracy: $(READY)  ## how often cause and culprit are right, on simulated jobs (ARGS="--count 1")
	@PYTHONPATH=tests $(RUN) -m accuracy.run --docs docs/accuracy.md \
		--reliability tracekit/reliability.json $(ARGS)

bundle: $(READY)  ## dist/*.tar.gz for a machine without network: ARCH=x86_64|aarch64 [PY=3.12]
	@$(RUN) .ci/bundle.py --arch "$(ARCH)" $(if $(PY),--python $(PY))

check-wheels: $(READY)  ## does every runtime pin have a wheel for each machine that we support?
	@$(RUN) .ci/bundle.py --check

# What is pinned stays unless pyproject.toml rules it out; UPGRADE=1 takes the newest of everything.
pins: .venv-pins/.stamp-$(UV_VERSION)  ## resolve requirements*.txt again [UPGRADE=1]
	@.venv-pins/bin/$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.txt
	@.venv-pins/bin/$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --group dev \
		--constraint requirements.txt -o requirements-dev.txt

.venv-pins/.stamp-$(UV_VERSION):
	@$(PYTHON) -m venv --clear .venv-pins
	@.venv-pins/bin/python -m pip --disable-pip-version-check -q install uv==$(UV_VERSION)
	@touch $@

clean:  ## remove what the recipes made, the environment included
	@rm -rf native/target $(NATIVE) .venv .venv-*/ dist build demo-out .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis .benchmarks
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
