# Two commands: `make demo` and `make test`. Both build .venv from a package registry first; nothing else is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
INDEX := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),)

.PHONY: demo check test test-slow lint serve models install dev lock sbom dist docs notes-report clean

demo: install
	$(BIN)/atento demo

# Before a commit, in under 90 seconds: format, lint, types, and the unit tests nearest to what changed since main.
check: dev
	$(BIN)/python tools/check.py $(CHECK)

test: dev
	$(BIN)/python tools/gate.py -m "not gpu and not slow" $(PYTEST)

# What the gate leaves out for its length: the full grids of cases, of which the gate runs a part, and long campaigns.
test-slow: dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "slow and not gpu" -n 2 --dist worksteal --durations=40 $(PYTEST)

lint: dev
	$(BIN)/ruff format src benchmarks examples models tests tools
	$(BIN)/ruff check --fix src benchmarks examples models tests tools
	$(BIN)/mypy

# The service's extra, into the same editable install.
serve: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[serve]'

# The models that come with the package again: those of the micro-world, and the table of their scores, in 15 minutes on
# two quiet cores; with DATASETS=FOLDER those of real text too, in hours (models/README.md). MODELS="NAME ..." chooses.
models: REAL = $(filter atento-% both-%,$(MODELS))
models: GRAMMAR = $(filter-out atento-% both-%,$(MODELS))
models: install
	$(if $(REAL),$(if $(DATASETS),,$(error $(REAL): give DATASETS=FOLDER, the data sets that models/README.md names)))
	$(if $(and $(REAL),$(if $(GRAMMAR),,x)),,OMP_NUM_THREADS=2 $(BIN)/python tools/models.py $(GRAMMAR))
	$(if $(and $(DATASETS),$(if $(and $(GRAMMAR),$(if $(REAL),,x)),,x)),OMP_NUM_THREADS=1 $(BIN)/python -m models.make $(REAL) --data $(DATASETS))

install: $(VENV)/installed
dev: $(VENV)/installed-dev

$(VENV)/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Atento needs Python 3.11 or newer; $(PYTHON) is older. Try: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/torch_note.py $(INDEX) --constraint constraints.txt
	$(BIN)/python -m pip install --quiet $(INDEX) --constraint constraints.txt torch
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

# What tests run with has one version each, and files with these hashes alone. Two packages have no wheels: they are
# built last, with the locked setuptools.
$(VENV)/installed-dev: $(VENV)/torch pyproject.toml requirements.lock
	awk '/^[a-z]/ { wheel = !/^(rouge-score|seqeval)==/ } wheel' requirements.lock > $(VENV)/wheels.lock
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement $(VENV)/wheels.lock
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --no-build-isolation --use-pep517 \
		--requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@ $(VENV)/installed

# The lock files again, after a change of pyproject.toml; `make lock LOCK=--upgrade` takes the newest versions.
lock: install
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python tools/lock.py lock $(LOCK)

# The packages of the image with versions, hashes and licences, as a bill of materials (CycloneDX): sbom.json
sbom: install
	$(BIN)/python tools/lock.py sbom

# The files of a release in dist/, checked and tried in fresh environments; nothing is published.
dist: dev
	$(BIN)/python tools/release.py $(if $(TORCH_INDEX),--index $(TORCH_INDEX),) $(DIST)

# The documentation site, strictly: a link that leads nowhere is an error. Open site/index.html.
docs: dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The lecture notes with every figure, in both languages, for the site: `make notes-report docs`. About twenty minutes.
notes-report: dev
	mkdir -p docs/notes-report/en docs/notes-report/pt-BR
	$(BIN)/atento notes --report --out docs/notes-report/en
	$(BIN)/atento notes --report --language pt-BR --out docs/notes-report/pt-BR

clean:
	rm -rf site dist docs/notes-report $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
