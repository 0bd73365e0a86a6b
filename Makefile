# Everything a person or CI runs. Needs only Python >= 3.11 with pip; the rest goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs coverage clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv; again only when pyproject.toml or constraints.txt changed

# torch goes in first and alone: the pinned CPU build then satisfies whatever else asks for torch.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "recollect needs Python 3.11 or newer: make PYTHON=...")'
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@echo "  installing torch"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@echo "  installing recollect and its tools"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
# A CUDA build of torch drags in gigabytes that nothing here uses, and rounds differently from what was tested.
	@cuda=$$($(BIN)/python -m pip list --format=freeze --disable-pip-version-check | grep -iE '^(nvidia-|cuda-|triton)' || true); \
	if [ -n "$$cuda" ] && [ -z "$(ALLOW_CUDA)" ]; then \
	  echo "a CUDA build of torch was installed:" $$cuda >&2; \
	  echo "let pip find a CPU build (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS) and run 'make clean setup'," >&2; \
	  echo "or keep this one with 'make setup ALLOW_CUDA=1'" >&2; exit 1; fi
	@touch $@
	@echo "  done"

demo: setup ## does history help on the electricity market? a verdict, a table and runs/demo/report.html
	@$(BIN)/recollect compare electricity --cutoff 0.3 --scale quick --out runs/demo --force

test: setup ## the default test suite
	$(TESTS)

check: setup ## ruff, mypy --strict and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict recollect benchmarks tools
	$(BIN)/lint-imports

docs: setup ## the documentation as a site, site/index.html; the page of commands is made anew
	$(BIN)/python tools/cli_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

coverage: setup ## line and branch coverage of the core; fails under 95%
	$(TESTS) --cov --cov-report=term

clean: ## remove .venv and every cache (runs/ stays)
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
