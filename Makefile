# Every command sets up what it needs in .venv first, once, and again when one of PINS changes.
#
#   make demo PYTHON=/path/to/python3    names the interpreter that makes .venv
#   make test PYTEST_ARGS="-k fixup"     passes more to pytest
#   make bench BENCH_ARGS=--quick        passes more to the benchmarks

SHELL := /bin/sh
PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=

# Pages of 2 MB where Linux gives them to who asks: a step's arrays are new memory each time, and in
# pages of 4 KB it takes longer (docs/speed.md). glibc reads this before Python starts.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
export GLIBC_TUNABLES

# Workers for pytest: one a core, and no more than four, since each holds a JAX of its own. A file
# stays with one worker, so that what it compiles is compiled once. A worker that crashes ends the
# run: in its place xdist would wait for ever for the rest of its file.
PYTEST := .venv/bin/python -m pytest -n logical --maxprocesses 4 --dist loadfile \
  --max-worker-restart 0
PINS := setup.cfg pyproject.toml requirements.txt
CODE := nf_resnets experiments tests benchmarks notebooks docs

# An interpreter that was asked for is used or refused; otherwise the next ones are tried in turn.
ifeq ($(origin PYTHON),file)
PYTHONS := "$(PYTHON)" python3.13 python3.12 python3.11
else
PYTHONS := "$(PYTHON)"
endif
VERSION := 'import sys; print(sys.version)'

.PHONY: help demo test slow faults bench docs wheel lint format clean distclean
.DELETE_ON_ERROR:

help:
	@echo 'make demo       train 14 networks of 10 to 1,000 layers, and draw their figure'
	@echo 'make test       run the tests and the doctests, without the slow ones'
	@echo 'make slow       run the slow tests'
	@echo 'make faults     run all tests of what trainings and sweeps survive, slow ones too'
	@echo 'make bench      measure, side by side, against PyTorch, BatchNorm and other depths'
	@echo 'make docs       build the documentation, in docs/_build/html'
	@echo 'make wheel      build what pip installs, in dist'
	@echo 'make lint       check style, format and types'
	@echo 'make format     put imports and layout in order'
	@echo 'make clean      remove caches and build products; results stay'
	@echo 'make distclean  clean, and remove .venv'

demo: .venv/.demo
	.venv/bin/python -m experiments.fixup_fig3_depth --scale demo

test: .venv/.test
	$(PYTEST) --durations 10 $(PYTEST_ARGS)

# In the order of the files: one of the experiments takes half of the time, and begins early so.
slow: .venv/.test
	$(PYTEST) --no-loadscope-reorder --durations 10 -m slow -o faulthandler_timeout=3600 $(PYTEST_ARGS)

faults: .venv/.test
	.venv/bin/python -m pytest tests/faults tests/training tests/sweep \
	  -m "slow or not slow" -o faulthandler_timeout=3600 $(PYTEST_ARGS)

bench: .venv/.bench
	.venv/bin/python -m benchmarks $(BENCH_ARGS)

docs: .venv/.docs
	.venv/bin/python -m sphinx -W --keep-going -q -j auto -b html docs docs/_build/html
	@echo 'The documentation begins at docs/_build/html/index.html.'

wheel: .venv/.wheel
	rm -rf dist
	.venv/bin/python -m build
	.venv/bin/python -m twine check --strict dist/*

lint: .venv/.lint
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

format: .venv/.lint
	.venv/bin/python -m ruff check --fix-only .
	.venv/bin/python -m ruff format .

# Only what can be made again, each by its name: an experiment's results are never among it.
clean:
	rm -rf build dist docs/_build docs/generated nf_resnets.egg-info .pytest_cache .mypy_cache .ruff_cache
	for folder in $(CODE); do \
	  if [ -d $$folder ]; then \
	    find $$folder -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune \
	      -exec rm -rf {} +; \
	  fi; \
	done

distclean: clean
	rm -rf .venv

# --- The set-up of .venv -----------------------------------------------------------------------
#
# .venv/.made        which folder .venv was made for
# .venv/.unfinished  the process that is changing .venv; left behind when it was interrupted
# .venv/.run, .demo, .test, .lint, .bench, .docs, .wheel    what has been installed

# Why .venv cannot be used, or nothing. A dependency of a file cannot ask this, so it is asked here:
# a copied .venv still points to the folder it came from, and its Python may be gone.
STALE := $(shell \
  if [ ! -d .venv ]; then exit; \
  elif [ -e .venv/.unfinished ]; then \
    kill -0 "$$(cat .venv/.unfinished)" 2>/dev/null || echo 'its set-up was interrupted'; \
  elif [ ! -e .venv/.made ]; then echo 'it was not made here'; \
  elif [ "$$(cat .venv/.made)" != "$$(pwd -P)" ]; then echo 'it was made for another folder'; \
  elif ! .venv/bin/python -c 'import pip' >/dev/null 2>&1; then echo 'its Python does not run'; \
  elif [ '$(origin PYTHON)' != file ] && \
    [ "$$("$(PYTHON)" -c $(VERSION) 2>&1)" != "$$(.venv/bin/python -c $(VERSION))" ]; then \
    echo 'it has another Python than the one asked for'; \
  fi)
ifneq ($(STALE),)
.PHONY: .venv/.made
endif

# Two makes at work on one .venv would spoil it.
define refuse_if_busy
if [ -e .venv/.unfinished ] && kill -0 "$$(cat .venv/.unfinished)" 2>/dev/null; then \
  echo "Another make, process $$(cat .venv/.unfinished), is setting up .venv: run this again when" \
    "it is done. If there is no such make, remove .venv." >&2; exit 1; \
fi
endef

.venv/.made:
	@$(refuse_if_busy); \
	for python in $(PYTHONS); do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	    >/dev/null 2>&1 && break; \
	  python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "nf_resnets needs Python 3.11 or newer with its venv module, and" $(PYTHONS) \
	    "is not it: install one, or name one with PYTHON=/path/to/python3." >&2; exit 1; \
	fi; \
	if [ -n '$(STALE)' ]; then echo 'Making .venv anew: $(STALE).'; fi; \
	rm -rf .venv && mkdir .venv && echo $$$$ > .venv/.unfinished && \
	"$$python" -m venv .venv && pwd -P > .venv/.made && rm .venv/.unfinished

# $(call install,EXTRAS): the stamp is written last, and bears the time at which the install began,
# so that pins edited meanwhile count as newer. An install that failed by itself (no network, say)
# leaves .venv as it was; one that was interrupted leaves .unfinished, and .venv is made anew.
define install
	@$(refuse_if_busy); \
	echo 'Installing what $(if $(1),make $(1),the package) needs into .venv; the first time takes a minute or more.'; \
	trap 'exit 130' HUP INT TERM; \
	echo $$$$ > .venv/.unfinished; \
	.venv/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint requirements.txt --editable '.$(if $(1),[$(1)])'; \
	code=$$?; \
	if [ $$code -eq 0 ]; then mv .venv/.unfinished $@; \
	elif [ $$code -lt 128 ]; then rm .venv/.unfinished; fi; \
	exit $$code
endef

.venv/.run: .venv/.made $(PINS)
	$(call install)

.venv/.demo: .venv/.run
	$(call install,experiments)

# One after the other, also under make -j: two installs into one .venv would collide.
.NOTPARALLEL:

.venv/.test: .venv/.run
	$(call install,test)

# PyTorch, some GB of it where pip finds no build for CPUs.
.venv/.bench: .venv/.test
	$(call install,bench)

.venv/.lint: .venv/.test
	$(call install,lint)

.venv/.docs: .venv/.test
	$(call install,docs)

.venv/.wheel: .venv/.test
	$(call install,wheel)
