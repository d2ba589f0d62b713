TAG ?= elsa-v1.7
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check
SGLANG := .venv-sglang

# Everything that one command needs is made by it; a second run finds it made.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) -c constraints.txt -e '.[dev]'
	touch $@

# CPU builds of what the patched tree imports; apart from .venv, which never holds torch.
$(SGLANG)/.ready: patchsets/requirements-test.txt
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/$(PIP) -r patchsets/requirements-test.txt
	touch $@

image: .venv/.ready
	$(BIN)/elsa-build image --tag $(TAG)
	$(BIN)/elsa-build verify dist/$(TAG)

test: test-tool test-patches

test-tool: .venv/.ready
	$(BIN)/pytest

test-patches: .venv/.ready $(SGLANG)/.ready
	$(BIN)/elsa-build apply --to .cache/patched
	ELSA_PATCHED_TREE=.cache/patched PYTHONDONTWRITEBYTECODE=1 $(SGLANG)/bin/python -m pytest patchsets

docs: .venv/.ready
	$(BIN)/python docs/generate.py

.PHONY: image test test-tool test-patches docs
