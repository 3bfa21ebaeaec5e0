# Each target makes .venv and installs all it needs by itself, from Python 3.12 and pip alone.

works = $(shell $(1) -c 'import sys; print("yes" if sys.version_info >= (3, 12) else "")' 2>/dev/null)
PYTHON ?= $(or $(foreach name,python3.12 python3,$(if $(call works,$(name)),$(name))),python3)
python := $(firstword $(PYTHON))
bin := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-ci test-slow test-wheel test-versions lint benchmarks notebooks slides site clean toy-reproduce
.DELETE_ON_ERROR:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: .venv/installed  ## VGPMIL on digits by every engine, into report/report.html
	$(bin)/milzoo demo --out report

test: .venv/installed  ## the quick suite, in minutes
	$(bin)/pytest --numprocesses=auto --dist=loadfile

test-ci: .venv/installed  ## the quick suite, and what takes seconds a test: as .ci/run has it
	$(bin)/pytest -m "not slow" --numprocesses=auto --dist=loadfile

test-slow: .venv/installed  ## all the rest: every case, and samplers at full length
	$(bin)/pytest -m "slow or in_ci" --numprocesses=auto --dist=loadfile

test-wheel:  ## the wheel in an empty environment: pip check, milzoo demo
	PYTHON=$(python) bash .ci/wheel

test-versions:  ## oldest and newest supported jax, numpyro, arviz, pymc
	$(python) .ci/versions.py oldest
	$(python) .ci/versions.py newest

lint: .venv/installed  ## style, layout and types
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/pyright --pythonpath $(bin)/python

# Toys compile for longer than they run, each by itself: two at once.
benchmarks: .venv/installed  ## every benchmark at toy size
	@$(MAKE) --no-print-directory -j2 $(addprefix --,$(filter output-sync,$(.FEATURES))) \
	    toy-reproduce $(patsubst benchmarks/%.py,toy-%,$(wildcard benchmarks/*.py))

toy-reproduce:
	@echo "== milzoo reproduce"; data=$${MILZOO_DATA:-../shared/data}; \
	if [ -d "$$data" ]; then MILZOO_DATA=$$data $(bin)/milzoo reproduce --toy --jobs 1; \
	else echo "skipped: no folder $$data; set MILZOO_DATA"; fi

toy-%: benchmarks/%.py
	@echo "== $<"; $(bin)/python $< --toy

notebooks: .venv/installed  ## examples that are numbered, run, into docs/notebooks/
	@mkdir -p docs/notebooks; set -e; for file in $(wildcard examples/[0-9]*.py); do \
	    name=docs/notebooks/$$(basename $$file .py).ipynb; echo "== $$name"; \
	    $(bin)/jupytext --quiet --to ipynb --output $$name $$file; \
	    $(bin)/jupyter execute --inplace $$name; \
	done

slides: notebooks  ## 20 slides of the notebooks, into site/slides/
	$(bin)/python docs/slides/build.py docs/notebooks site/slides

# With REPOSITORY=owner/name on GitHub, the pages of the notebooks open in Colab and Binder.
site: slides  ## guides, API, notebooks and slides as pages, into site/
	$(bin)/python docs/gallery.py
	$(bin)/python -m build --quiet --no-isolation --outdir site/elsewhere
	$(bin)/python docs/open_elsewhere.py docs/notebooks site/elsewhere $(REPOSITORY)
	$(bin)/sphinx-build -W --keep-going -q docs site

clean:  ## remove all that make has made
	rm -rf .venv build dist report site jupyter_execute docs/notebooks docs/api/milzoo* *.egg-info .pytest_cache .ruff_cache .hypothesis .jax_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(call works,$(python))" || \
	    { echo "milzoo needs Python 3.12 or newer, and $(python) is not: make PYTHON=..." >&2; exit 1; }
	$(python) -m venv .venv
	$(bin)/python -m pip install -q -c constraints.txt -e '.[pymc,deep,notebooks,site,dev]'
	@touch $@
