# Everything starts here: each target makes the environment it needs. `make` alone lists the targets.

PYTHON ?= python3
TORCH  := 2.13.0
INCUMBENTS := 8.3.3 26.2.0

# Restrict `make spec`: make spec ROWS="C001-C027,R01-R06" ENVS=PT,CLI V=1
ROWS :=
ENVS :=
V    :=
# Arguments handed on: make test TESTS="tests/test_name.py -x", make bench BENCH="--help"
TESTS :=
BENCH :=

PY  := .venv/bin/python
PIP := -m pip install --quiet --disable-pip-version-check

# An environment holds absolute paths, so the stamps name the place: a copied tree makes its own anew.
PLACE     := $(shell pwd | cksum | cut -d ' ' -f 1)
TORCHED   := .venv/.torch-$(TORCH)-$(PLACE)
READY     := .venv/.ready-$(PLACE)
INCUMBENT := $(INCUMBENTS:%=.venv-%/.ready-$(PLACE))

BUILT_FROM := pyproject.toml $(wildcard setup.py) $(wildcard src/msprobe/*.[ch])
TESTED     := pyproject.toml $(wildcard README.md examples/*.py) $(shell find src tests tools \
                -path tests/golden -prune -o -regex '.*\.\(py\|c\|h\|js\|css\|html\|json\|yaml\|tsv\)' -print)

.DEFAULT_GOAL := help
.PHONY: help env demo test lint format spec prove bench envs-incumbent clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a small transformer twice, record both runs, name the call that differs
	$(PY) examples/demo.py

test: lint ## lint, types and all tests but the long ones; what CI runs
	$(PY) -m pytest -q $(if $(TESTS),$(TESTS),--spec-report=build/spec.json)

lint: $(READY) ## ruff and mypy --strict
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(READY) ## let ruff put imports and layout right
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

spec: $(READY) ## which rows of the specification are shown by a passing test (ROWS=, ENVS=, V=1)
	@$(MAKE) --no-print-directory build/spec.json || true
	@$(PY) tools/spec.py --rows "$(ROWS)" --env "$(ENVS)" $(if $(V),-v)

build/spec.json: $(READY) $(TESTED)
	$(PY) -m pytest -q --spec-report=$@

prove: $(READY) envs-incumbent ## the long tests: kills, fuzzing, soak, the existing tool's own compare
	$(PY) -m pytest -q -m prove $(TESTS)

bench: $(READY) .venv-26.2.0/.ready-$(PLACE) ## cost of recording and comparing beside the existing tool
	$(PY) bench/record.py $(BENCH)
	$(PY) bench/compare.py

env: $(READY) ## only the environment (.venv)

envs-incumbent: $(INCUMBENT) ## environments with the existing tool (.venv-8.3.3, .venv-26.2.0)

clean: ## remove environments, caches and what builds left behind
	rm -rf .venv .venv-* build dist src/*.egg-info src/msprobe/_kernels*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# torch comes first and alone: asked for by exact version, pip takes the wheel without CUDA where there is one, and
# nothing that is installed later has a reason to fetch another.
$(TORCHED): | tools/venv.sh
	@echo "Making .venv with torch $(TORCH); this takes a few minutes once ..."
	@sh tools/venv.sh .venv $(PYTHON)
	$(PY) $(PIP) torch==$(TORCH)
	@touch $@

$(READY): $(BUILT_FROM) $(TORCHED)
	$(PY) $(PIP) --editable '.[test]'
	@touch $@

.venv-%/.ready-$(PLACE): | tools/venv.sh
	@echo "Making .venv-$* with the existing tool, release $* ..."
	@sh tools/venv.sh .venv-$* $(PYTHON)
	.venv-$*/bin/python $(PIP) torch==$(TORCH)
	.venv-$*/bin/python $(PIP) mindstudio-probe==$*
	@touch $@
