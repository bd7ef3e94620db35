# One target per task. Each target first creates .venv and installs the packages that it needs.

# The Python of the distribution, if it is new enough and has venv and headers: it is compiled with
# all optimizations. One of pyenv is not by default, and all tests take three minutes more with it.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, os, sys, sysconfig; sys.exit( \
	sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
	2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -q
# Most tests wait most of the time, so seven workers suit two processors: with six, these were idle
# for 30 s. All of them took up to 14 GB of memory.
WORKERS ?= 7
MINUTES ?= 10
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The tests start thousands of processes. Without .pyc files each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# What `make test-fast` runs: the pure rings, and of each other ring what takes seconds.
FAST := tests/unit tests/interaction tests/test_docs.py \
	tests/simulation/test_simulation.py::test_a_seed_is_a_run \
	tests/simulation/test_simulation.py::test_a_larger_model_is_searched_with_jumps \
	tests/simulation/test_changing.py::test_a_seed_is_a_run \
	tests/simulation/test_files.py::test_a_seed_is_a_run_on_files \
	tests/simulation/test_limbo_world.py::test_a_seed_is_a_run \
	tests/contract/objectstore/test_objectstore_local.py \
	tests/contract/pgwal/test_operation_against_waldump.py \
	tests/integration/test_process_faults.py::test_nothing_is_lost_when_everything_is_killed_at_once

# Unit tests that call most loops of numba. Their results count later, with those of all tests.
COMPILES := unit and (test_heap_scan or test_tuple_print or test_wal_decoder or test_datum \
	or test_wal_filter or test_record_checksum or test_layer_merge or test_layers \
	or test_garbage or test_page_index or test_page_keys or (test_fuzz and pg_index))

.PHONY: demo test test-fast pytest mutants fuzz soak check bench deb clean

# Sources of the compiled modules. A change of one compiles them again, if there is a compiler.
PXD := $(shell find safekeeper walproposer storage consensus pgwire -name '*.pxd')
COMPILED := hatch_build.py storage/compiled.py $(PXD) $(patsubst %_compiled.pxd,%.py,$(filter %_compiled.pxd,$(PXD)))

# The demo alone needs no packages of the tests.
$(VENV)/installed-demo: pyproject.toml $(COMPILED)
	@echo 'installing into $(VENV): a few minutes and some 200 MB the first time'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -e '.[embedded]'
	touch $@

$(VENV)/installed: pyproject.toml $(COMPILED)
	@echo 'installing into $(VENV), with the packages of the tests: some minutes the first time'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -e '.[embedded,test]'
	touch $(VENV)/installed-demo $@

# Half a gigabyte of packages that the demo and the soak do not need.
$(VENV)/installed-spark: pyproject.toml $(COMPILED)
	@echo 'installing into $(VENV), with Spark and Java: some minutes and 2 GB the first time'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -e '.[embedded,spark,jdk,test]'
	# barman requires psycopg2, which needs a compiler; psycopg2-binary is the same module.
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps 'barman>=3.19,<4'
	touch $(VENV)/installed-demo $(VENV)/installed $@

demo: $(VENV)/installed-demo  ## Postgres, three safekeepers, faults, and the verdict
	$(BIN)/sk demo

# Both in parallel: `check` computes while tests wait for their servers.
test: $(VENV)/installed-spark  ## all tests, and check
	$(MAKE) --no-print-directory --jobs=2 check pytest

# Without the style of files, which `check` has looked at. One process compiles all bytecode, and the
# loops of numba, before the others start: they would each compile the same at the same time.
pytest: $(VENV)/installed-spark
	@ls spark/changes/__pycache__/*.nbc >/dev/null 2>&1 || \
		$(BIN)/pytest --quiet --ignore=tests/test_tidy.py -k '$(COMPILES)' >/dev/null || true
	$(BIN)/pytest --numprocesses=$(WORKERS) --no-loadscope-reorder --ignore=tests/test_tidy.py \
		$(PYTEST_ARGS)

test-fast: $(VENV)/installed-spark  ## the pure rings, and a little of the others, in two minutes
	$(BIN)/pytest --numprocesses=2 --no-loadscope-reorder $(PYTEST_ARGS) $(FAST)

mutants: $(VENV)/installed-spark  ## planted bugs: the simulator must detect each one
	$(BIN)/python -m tests.simulation --mutants

fuzz: $(VENV)/installed-spark  ## fuzz every parser of outside input, for MINUTES
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

soak: $(VENV)/installed  ## run a cluster under random faults and failovers, for MINUTES
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

check: $(VENV)/installed-spark  ## style, types, import rules, sizes
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	nice $(BIN)/mypy --no-error-summary
	nice $(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q -p no:randomly tests/test_tidy.py

bench: $(VENV)/installed-spark  ## every benchmark, medians and ratios
	$(BIN)/python -m benchmarks

deb:  ## a Debian package for this machine's release, in dist/ (docs/install.md)
	packaging/debian/build $(DEB_FOLDER)

clean:
	find . -path ./$(VENV) -prune -o -name '*_compiled*.so' -exec rm {} +
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
