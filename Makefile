TAG ?= elsa-v1.7
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check
SGLANG := .venv-sglang
PATCHED := PYTHONDONTWRITEBYTECODE=1 $(SGLANG)/bin/python -m pytest

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

# What compiles kernels: torch with CUDA, Triton, FlashInfer and nvcc, as the image has them.
KERNELS := .venv-kernels
$(KERNELS)/.ready: kernels/requirements.txt
	$(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/$(PIP) --no-compile -r kernels/requirements.txt
	touch $@

# What fits into eleven minutes of CPU time; `make kernels CPU=3h` or `elsa-build kernels build --all`
# builds the large modules too. Without them the first start compiles those, and the image says so.
CPU ?= 11m
kernels: .venv/.ready $(KERNELS)/.ready
	$(BIN)/elsa-build kernels build --cpu $(CPU)
	$(BIN)/elsa-build kernels verify

image: .venv/.ready kernels
	$(BIN)/elsa-build image --tag $(TAG)
	$(BIN)/elsa-build verify dist/$(TAG)

test: test-tool test-patches

test-tool: .venv/.ready $(KERNELS)/.ready
	$(BIN)/elsa-build apply --to .cache/patched
	ELSA_KERNELS_PYTHON=$(CURDIR)/$(KERNELS)/bin/python $(BIN)/pytest -n auto

test-patches: .venv/.ready $(SGLANG)/.ready
	$(BIN)/elsa-build apply --to .cache/patched
	ELSA_PATCHED_TREE=.cache/patched $(PATCHED) patchsets
	# The control: on upstream's own tree the guard's tests end with the assertion that it prevents.
	rm -rf .cache/unpatched && mkdir -p .cache/unpatched
	git -C .cache/patched archive elsa-base | tar x -C .cache/unpatched
	ELSA_PATCHED_TREE=.cache/unpatched $(PATCHED) patchsets/mamba-checkpoint-guard \
		>.cache/unpatched.log 2>&1 && exit 1 || grep -c "Can not alloc mamba cache" .cache/unpatched.log

docs: .venv/.ready
	$(BIN)/python docs/generate.py

.PHONY: image kernels test test-tool test-patches docs
