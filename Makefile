# Everything starts here: each target makes the environment it needs. `make` alone lists the targets.

PYTHON ?= python3
TORCH  := 2.13.0
TORCHVISION := 0.28.0
TRANSFORMERS := 5.23.0
TIMM := 1.0.31
MINDSPORE := 2.10.0
# Two that bring a torch that computes with MindSpore, and the last MindSpore that both run with.
MINDNLP := 0.5.1
MSADAPTER := 0.5.0b1
MINDSPORE_OF_BOTH := 2.7.2
INCUMBENTS := 8.3.3 26.2.0

# Restrict `make spec`: make spec ROWS="C001-C027,R01-R06" ENVS=PT,CLI V=1
ROWS :=
ENVS :=
V    :=
# Arguments handed on: make test TESTS="tests/test_name.py -x", make bench BENCH="--help"
TESTS :=
BENCH :=
# make truth TRUTH="--part kernels --modes tensor"
TRUTH := --report

PY  := .venv/bin/python
# Most of what is installed is never imported: Python compiles the rest when it is. A wheel of MindSpore has
# 300 MB: a connection that pauses for some seconds must not cost the whole run.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile --timeout=60 --retries=10
# So it must keep what it has compiled: without that, each of some thousand processes takes 4 s more for torch.
unexport PYTHONDONTWRITEBYTECODE

# An environment holds absolute paths, so the stamps name the place: a copied tree makes its own anew.
PLACE     := $(shell pwd | cksum | cut -d ' ' -f 1)
TORCHED   := .venv/.torch-$(TORCH)-$(PLACE)
READY     := .venv/.ready-$(PLACE)
MS_PY     := .venv-mindspore/bin/python
MS_MADE   := .venv-mindspore/.frameworks-$(MINDSPORE)-$(TORCH)-$(PLACE)
MS_READY  := .venv-mindspore/.ready-$(PLACE)
MSA_PY    := .venv-msadapter/bin/python
MSA_MADE  := .venv-msadapter/.frameworks-$(MINDSPORE_OF_BOTH)-$(MINDNLP)-$(MSADAPTER)-$(PLACE)
MSA_READY := .venv-msadapter/.ready-$(PLACE)
TRUTH_PY    := .venv-truth/bin/python
TRUTH_READY := .venv-truth/.ready-$(TORCH)-$(TRANSFORMERS)-$(TIMM)-$(PLACE)
INCUMBENT := $(INCUMBENTS:%=.venv-%/.ready-$(PLACE)) $(INCUMBENTS:%=.venv-%-mindspore/.ready-$(PLACE))

BUILT_FROM := pyproject.toml $(wildcard setup.py) $(wildcard src/msprobe/*.[ch])
TESTED     := pyproject.toml $(wildcard README.md examples/*.py) $(shell find src tests tools truth \
                -path tests/golden -prune -o -regex '.*\.\(py\|c\|h\|js\|css\|html\|json\|yaml\|tsv\)' -print)

.DEFAULT_GOAL := help
.PHONY: help env envs demo test test-torch test-checks test-mindspore test-msadapter lint format spec bench clean
.PHONY: prove prove-torch prove-mindspore envs-incumbent truth

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a small transformer twice, record both runs, name the call that differs
	$(PY) examples/demo.py

# As many at once as there are cores; what each prints is shown when it has ended.
AT_ONCE := --no-print-directory --jobs=$(shell nproc) --output-sync=target
RUNS    := torch mindspore checks msadapter
REPORTS := $(RUNS:%=build/spec/%.json)

test: ## lint, types and all tests but the long ones; what CI runs
ifneq ($(TESTS),)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-torch
else
	@$(MAKE) --no-print-directory envs
	@$(MAKE) $(AT_ONCE) --keep-going lint $(RUNS:%=test-%)
endif

# The runs share the cores, so a thread of OpenMP that waits must not keep one busy.
$(RUNS:%=test-%): export OMP_WAIT_POLICY := passive
# A test that waits for ever ends its run, and where every thread stood is printed.
$(RUNS:%=test-%): export PYTEST_ADDOPTS := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# Some tests alone have no say in which rows of the specification are shown.
SHOWN = $(if $(TESTS),,--spec-report=build/spec/$(@:test-%=%).json)

# What takes long with PyTorch is a run of its own, so that the cores share it.
CHECKS := tests/culprits $(wildcard $(patsubst %,tests/test_%*.py,precheck overflow free_benchmark stability shared_csv online))

test-torch: $(READY) ## only the tests that need no MindSpore, and not those of test-checks
	$(PY) -m pytest -q $(or $(TESTS),--ignore=tests/ms --ignore=tests/msadapter $(CHECKS:%=--ignore=%)) $(SHOWN)

test-checks: $(READY) ## only the tests of finding culprits, overflow_check, free_benchmark, run_ut and its online form
	$(PY) -m pytest -q $(or $(TESTS),$(CHECKS)) $(SHOWN)

# With numpy 1.26, which MindSpore needs; so what depends most on numpy is tested here once more.
test-mindspore: $(MS_READY) ## only the tests with MindSpore (.venv-mindspore)
	$(MS_PY) -m pytest -q $(or $(TESTS),tests/ms tests/test_kernels.py tests/test_tensor_file.py) $(SHOWN)

test-msadapter: $(MSA_READY) ## only the tests with MSAdapter, a torch that computes with MindSpore (.venv-msadapter)
	$(MSA_PY) -m pytest -q $(or $(TESTS),tests/msadapter) $(SHOWN)

lint: $(READY) ## ruff and mypy --strict
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(READY) ## let ruff put imports and layout right
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

spec: $(READY) ## which rows of the specification are shown by a passing test (ROWS=, ENVS=, V=1)
	@$(MAKE) --no-print-directory envs
	@$(MAKE) $(AT_ONCE) --keep-going $(REPORTS) || true
	@$(PY) tools/spec.py --rows "$(ROWS)" --env "$(ENVS)" $(if $(V),-v) --report $(REPORTS)

build/spec/%.json: $(TESTED)
	@rm -f $@
	@$(MAKE) --no-print-directory TESTS= test-$*

prove: ## the long tests: kills, fuzzing, soak, the existing tool's own compare
ifneq ($(TESTS),)
	@$(MAKE) --no-print-directory prove-torch
else
	@$(MAKE) --no-print-directory --keep-going prove-torch prove-mindspore truth
endif

prove-torch: $(READY) envs-incumbent ## those of them that need no MindSpore
	$(PY) -m pytest -q -m prove $(or $(TESTS),--ignore=tests/ms --ignore=tests/msadapter)

prove-mindspore: $(MS_READY) ## those of them with MindSpore
	$(MS_PY) -m pytest -q -m prove $(or $(TESTS),tests/ms tests/prove/test_ms_soak.py)

# What every answer is held against; 40 minutes on two cores, less where recordings are still good.
truth: $(READY) $(MS_READY) $(TRUTH_READY) ## how often the right call is named: writes docs/truth.md (TRUTH=)
	PYTHONPATH=src $(PY) -m truth --jobs $(shell nproc) $(TRUTH)

bench: $(READY) $(MS_READY) .venv-26.2.0/.ready-$(PLACE) ## cost of recording and comparing beside the existing tool
	$(PY) bench/record.py $(BENCH)
	$(PY) bench/compare.py
	$(PY) bench/kernel_speed.py
	$(MS_PY) bench/record_ms.py

env: $(READY) ## only the environment (.venv)

# This package one after the other: each of its installations builds in the same source tree.
envs: ## the environments of all tests (.venv, .venv-mindspore, .venv-msadapter)
	@$(MAKE) $(AT_ONCE) $(MS_MADE) $(TORCHED) $(MSA_MADE)
	@$(MAKE) --no-print-directory $(READY) $(MS_READY) $(MSA_READY)

envs-incumbent: $(INCUMBENT) ## environments with the existing tool (.venv-8.3.3, .venv-8.3.3-mindspore ...)

clean: ## remove environments, caches and what builds left behind
	rm -rf .venv .venv-* build dist src/*.egg-info src/msprobe/_kernels*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools truth examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

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

# MindSpore does not run with numpy 2, nor ml_dtypes 0.6 with numpy 1.
$(MS_MADE): | tools/venv.sh
	@echo "Making .venv-mindspore with MindSpore $(MINDSPORE) and torch $(TORCH); this takes a few minutes once ..."
	@sh tools/venv.sh .venv-mindspore $(PYTHON)
	$(MS_PY) $(PIP) torch==$(TORCH)
	$(MS_PY) $(PIP) mindspore==$(MINDSPORE) 'numpy<2' 'ml_dtypes<0.6'
	@touch $@

$(MS_READY): $(BUILT_FROM) $(MS_MADE)
	$(MS_PY) $(PIP) 'numpy<2' --editable '.[test]'
	@touch $@

# What mindnlp asks for beside this is for its models, and a real torch must not be there at all. msadapter has
# a folder of its own, because both have packages of the same names.
$(MSA_MADE): | tools/venv.sh
	@echo "Making .venv-msadapter with MindSpore $(MINDSPORE_OF_BOTH); this takes a few minutes once ..."
	@sh tools/venv.sh .venv-msadapter $(PYTHON)
	$(MSA_PY) $(PIP) mindspore==$(MINDSPORE_OF_BOTH) 'numpy<2' 'ml_dtypes<0.6' tqdm typing_extensions
	$(MSA_PY) $(PIP) --no-deps mindnlp==$(MINDNLP)
	$(MSA_PY) $(PIP) --no-deps --target .venv-msadapter/msadapter msadapter==$(MSADAPTER)
	@touch $@

$(MSA_READY): $(BUILT_FROM) $(MSA_MADE)
	$(MSA_PY) $(PIP) --no-warn-conflicts 'numpy<2' 'pytest>=9' --editable .
	@touch $@

# timm imports torchvision, which asks for a torch of its own and has none for a CPU alone: nothing of it is computed
# with. msprobe itself is taken from src, with what it depends on.
$(TRUTH_READY): | tools/venv.sh
	@echo "Making .venv-truth with torch $(TORCH), transformers and timm; this takes a few minutes once ..."
	@sh tools/venv.sh .venv-truth $(PYTHON)
	$(TRUTH_PY) $(PIP) torch==$(TORCH)
	$(TRUTH_PY) $(PIP) transformers==$(TRANSFORMERS) pillow 'numpy>=1.26' 'pydantic>=2.10' 'pyyaml>=6' 'isal>=1.6' 'xxhash>=3.4' 'orjson>=3.10' 'msgspec>=0.19'
	$(TRUTH_PY) $(PIP) --no-deps timm==$(TIMM) torchvision==$(TORCHVISION)
	@touch $@

.venv-%/.ready-$(PLACE): | tools/venv.sh
	@echo "Making .venv-$* with the existing tool, release $* ..."
	@sh tools/venv.sh .venv-$* $(PYTHON)
	.venv-$*/bin/python $(PIP) torch==$(TORCH)
	.venv-$*/bin/python $(PIP) mindstudio-probe==$*
	@touch $@

.venv-%-mindspore/.ready-$(PLACE): | tools/venv.sh
	@echo "Making .venv-$*-mindspore with MindSpore and the existing tool, release $* ..."
	@sh tools/venv.sh .venv-$*-mindspore $(PYTHON)
	.venv-$*-mindspore/bin/python $(PIP) torch==$(TORCH)
	.venv-$*-mindspore/bin/python $(PIP) mindspore==$(MINDSPORE) 'numpy<2' 'ml_dtypes<0.6'
	.venv-$*-mindspore/bin/python $(PIP) mindstudio-probe==$* 'numpy<2' 'ml_dtypes<0.6'
	@touch $@
