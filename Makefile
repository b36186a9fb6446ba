# `make demo`, `make test` and `make docs` set up .venv by themselves; only Python (>= 3.11), pip and make are needed.
# With another Python: `make test PYTHON=python3.13 VENV=.venv-newest`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test suite suite-of-python test-slow test-committed test-lowest answers-kernels lint docs pages benchmark clean

demo: $(VENV)/.installed
	$(BIN)/python scripts/demo.py --out demo

test: lint suite

# a test runs on one processor: threads of BLAS would take turns with those of the other tests
suite suite-of-python test-slow test-committed test-lowest answers-kernels: export OMP_NUM_THREADS = 1

# the tests of `make test` alone
suite: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not slow"

# Of these the tests whose answer may depend on the version of Python: commands, files, processes, pickles, messages, and each
# family, rule and plug-in as a whole. Left out are numbers, figures, pages, examples, and JavaScript.
NUMBERS := engine linear_attention papers recall regression results \
  $(addprefix grids/test_,$(addsuffix .py,changed claims grid large other_columns)) \
  $(addprefix test_,$(addsuffix .py,certified curves descent explanations fastforward figures fixed_chain flow heads \
  induction_heads lengths loss_units off_defaults representation rule_restarts saddles scope separate sharpness \
  single_location slots sphere starts stiff testing testing_families three_states token_counts token_heads token_selection \
  tokens))
suite-of-python: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests -n auto --maxprocesses 4 --dist worksteal -m "not slow" \
	  $(addprefix --ignore tests/,$(NUMBERS) test_pages.py test_panels.py) --ignore-glob 'tests/test_explorer*' \
	  --deselect tests/test_package.py::test_code_on_the_page_runs

# the tests that take longest, which `make test` leaves out
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist load -m slow

# Of these the tests that committed answers, numbers and pages are what the package computes, and that figures can be drawn.
test-committed: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist load -m slow \
	  tests/test_record.py tests/test_golden.py tests/test_pages.py tests/papers/test_audit.py tests/test_figures.py

# the record of answers as on older processors
answers-kernels: $(VENV)/.installed-test
	$(BIN)/python scripts/kernels.py $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist load -m answers

# the lowest versions that pyproject.toml allows, in an environment of their own
test-lowest: $(VENV)-lowest/.installed
	$(VENV)-lowest/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# `make docs QUICK=1` draws the gallery with fewer and shorter runs, and `make docs GALLERY=0` makes it without pictures. Every
# build is a new one: what is remembered of the last one would hide warnings, pages that are gone and figures that have
# changed, and saves a few seconds.
GALLERY := 1
docs: export QUICK := $(QUICK)
docs: $(VENV)/.installed-docs
	rm -rf docs/_build docs/api/generated docs/gallery
	$(BIN)/python -m sphinx -q -W --keep-going -D plot_gallery=$(GALLERY) -d docs/_build/doctrees docs docs/_build/html
	@echo "The documentation is in docs/_build/html/index.html"

# the committed pages and pictures; `make pages PAGES="audit.md images/front.png"` makes these alone
pages: $(VENV)/.installed
	$(BIN)/python scripts/remake.py $(PAGES)

benchmark: $(VENV)/.installed
	$(BIN)/python scripts/benchmark.py --json benchmark.json

clean:
	rm -rf docs/_build docs/api/generated docs/gallery
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest demo benchmark.json .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@ $(VENV)/.installed

$(VENV)-lowest/.installed: pyproject.toml scripts/lowest.py
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python scripts/lowest.py > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' -c $(VENV)-lowest/constraints.txt
	touch $@
