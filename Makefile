# Everything a developer runs. `make` alone lists the targets.

VERSIONS := python3.11 python3.12 python3.13
# a distribution's own Python before another on the PATH: Debian builds its with profile-guided and link-time
# optimization; one that was compiled without these options, as by pyenv's defaults, took 1.28 times the CPU time in tests
SYSTEM_PYTHON = $(foreach p,$(VERSIONS),$(shell /usr/bin/$(p) -c 'import ensurepip, venv' 2>/dev/null && echo /usr/bin/$(p)))
PYTHON ?= $(firstword $(SYSTEM_PYTHON) $(foreach p,$(VERSIONS) python3,$(shell command -v $(p) 2>/dev/null)))
VENV ?= .venv
BOARD ?= host
# a kernel takes seconds to compile with PoCL
TRIALS ?= $(if $(filter pocl,$(BOARD)),4,32)
PYTEST_ARGS ?=
# how tests share the cores, one process more than these, as some tests wait; PARALLEL= runs them one after the other
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
PARALLEL ?= -n $(if $(filter 1 2 3,$(CORES)),$(shell expr $(CORES) + 1),4) --dist worksteal
EXPERIMENTS ?=
TORTURE ?=
PEERS ?= build/peers
BENCH_ARGS ?= --threads 1,2
NETWORK_TRIALS ?= 64
RESULTS ?= build/bench
REPORTS := kernels networks random loops-host loops-rpi3b compile
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin
KERNELS = $(BIN)/python -m benchmarks.kernels
# tests start Python hundreds of times: without kept bytecode each time compiles every module of this project again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv check static quick test torture demo bench replay experiments emulation golden clean

help:  ## list these targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

venv: $(STAMP)  ## create .venv and install the project with its test tools

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "No python3 found: install Python 3.11 or newer (Debian: apt-get install python3)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || .ci/system-packages python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing tune-for-board and its dependencies into $(VENV) ..." >&2
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

check: venv  ## format, lint, types, import contracts and the quick tests, all at the same time
	@$(MAKE) --no-print-directory --jobs=2 --output-sync static quick

static: venv  ## format, lint, types and import contracts alone
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# "+": dots are shown as they come; what the other job prints, all at once
quick: venv  ## the quick tests alone
	+MAKEFLAGS= $(BIN)/python -m pytest -m "not slow and not emulated and not board" $(PARALLEL) $(PYTEST_ARGS)

test: venv  ## set up everything, then run every test that needs no board (9 to 20 minutes on two cores)
	@.ci/system-packages
	@$(MAKE) --no-print-directory emulation
	$(BIN)/python -m pytest -m "not board" $(PARALLEL) $(PYTEST_ARGS)

torture: venv  ## attack the tool and its runtime, for real (30 minutes on two cores; TORTURE='--list')
	@.ci/system-packages
	@$(MAKE) --no-print-directory emulation
	$(BIN)/python -m tests.torture --json build/torture.json $(TORTURE)

demo: venv  ## tune, bundle and flash a real network (BOARD=host TRIALS=32, or BOARD=emulated-a53 or pocl)
	@$(BIN)/python -m benchmarks.demo BOARD=$(BOARD) TRIALS=$(TRIALS)

bench: venv  ## measure scoring and tuning throughput, then our kernels and networks beside other libraries'
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.tuning_throughput
	-$(KERNELS) setup-peers $(PEERS)
	$(KERNELS) run --peers $(PEERS) --json $(RESULTS)/kernels.json $(BENCH_ARGS)
	$(KERNELS) networks --peers $(PEERS) --json $(RESULTS)/networks.json $(BENCH_ARGS) --trials $(NETWORK_TRIALS)
	$(KERNELS) random --json $(RESULTS)/random.json
	$(KERNELS) loops --json $(RESULTS)/loops-host.json
	$(KERNELS) loops --board rpi3b --json $(RESULTS)/loops-rpi3b.json
	$(KERNELS) compile --json $(RESULTS)/compile.json
	$(KERNELS) goals $(addprefix $(RESULTS)/,$(addsuffix .json,$(REPORTS))) --json $(RESULTS)/goals.json

experiments: venv  ## rerun the studies of the AutoTVM paper and write one page (hours; EXPERIMENTS=--quick: two minutes)
	$(BIN)/python -m benchmarks.experiments run $(EXPERIMENTS)

replay: venv  ## measure the recorded spaces again that searches are compared on (ten to fifteen minutes)
	$(BIN)/python -m benchmarks.replay record C6 C9 M1024 tiny

emulation: venv  ## fetch qemu and an aarch64 Python for the board emulated-a53
	@$(BIN)/toolkit runtime emulation

golden: venv  ## rewrite the golden files from what the code prints now
	$(BIN)/python -m pytest -m "not slow and not emulated and not board" --update-golden $(PYTEST_ARGS)

clean:  ## remove the virtual environment, caches and build output
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
