TAG ?= elsa-v1.7
PYTHON ?= python3
BIN := .venv/bin

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

image: .venv/.ready
	$(BIN)/elsa-build image --tag $(TAG)

test: .venv/.ready
	$(BIN)/pytest

.PHONY: image test
