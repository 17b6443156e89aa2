# Every target sets up what it needs the first time, from the locked and hashed requirements.
# Needs Python 3.11 to 3.13, make and a package index; interop needs a JDK 17, Maven, Go and npm as well.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := -m pip --disable-pip-version-check --quiet
PIP := $(BIN)/python $(PIP_FLAGS)
# The locks name every package there is to install: nothing is left for pip to resolve.  Older versions of
# it would take a newer release for what one package wants of another, and refuse it for want of a hash.
LOCKED := install --require-hashes --no-deps
UV_VERSION := 0.13.7
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-xa run test interop cluster spark-versions package check format bench first-hour crash year borders fuzz docs site lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/spark.stamp ## Pay orders under kills, with plain and with transactional messages; a minute and a half
	$(BIN)/python -m escrowmq.cli.main demo $(ARGS)

demo-xa: $(VENV)/spark.stamp ## The same, and XA two-phase commit on PostgreSQL beside it
	$(BIN)/python -m escrowmq.cli.main demo --xa $(ARGS)

run: $(VENV)/base.stamp ## Run the escrowmq command: make run ARGS="config show"
	$(BIN)/escrowmq $(ARGS)

# What must be covered is covered by its own tests: to trace the others as well costs minutes.
COVERED := tests/unit/store tests/unit/transaction

test: check ## Everything a change must pass: check, all tests, the coverage gate
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --cov --cov-report= $(COVERED) $(ARGS)
	$(BIN)/coverage report --fail-under=100
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup $(COVERED:%=--ignore=%) $(ARGS)

interop: $(VENV)/dev.stamp ## Stock RocketMQ clients against our broker; needs a JDK 17, Maven, Go and npm
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup tests/interop $(ARGS)

cluster: $(VENV)/spark.stamp ## A real Spark cluster of processes: the pipeline on two hosts, one of which dies
	$(BIN)/python -m pytest tests/cluster $(ARGS)

# Source, sink and views; the pipeline itself runs on the Spark that escrowmq[spark] installs.
SPARK_TESTS := $(wildcard $(addprefix tests/spark/test_,source.py stream_*.py old_*.py sink*.py \
  view*.py java.py plain_program.py))
SPARK_VERSIONS ?= 4.0 4.1 4.2 4.3
# PySpark 4.0 leaves sockets of its own open, which our other tests take for errors.
SPARK_PYTEST := -m pytest -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

spark-versions: $(SPARK_VERSIONS:%=spark-%) ## The Spark tests on 4.0, 4.1, 4.2 and 4.3, each in an environment of its own; not in CI

spark-4.3: $(VENV)/spark.stamp
	$(BIN)/python -m pytest $(SPARK_TESTS) $(ARGS)

spark-%: $(VENV)-spark-%/stamp
	$(VENV)-spark-$*/bin/python $(SPARK_PYTEST) $(SPARK_TESTS) $(ARGS)

package: $(VENV)/spark.stamp ## Build sdist and wheel, install the wheel into empty environments and use it; the whole demo
	$(BIN)/python -m pytest tests/package $(ARGS)

check: $(VENV)/spark.stamp ## Lint, format, spelling and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy

format: $(VENV)/dev.stamp ## Put the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/$(if $(filter pipeline,$(NAME)),spark,$(if $(filter grpc peers state,$(NAME)),dev,base)).stamp ## Print figures, one JSON object per line: make bench NAME=store
	$(BIN)/python -m bench.$(NAME) $(ARGS)

first-hour: $(VENV)/base.stamp ## Seconds from git clone to the first transactional message, without and with Spark; downloads once
	$(BIN)/python -m bench.first_hour $(ARGS)

fuzz: $(VENV)/dev.stamp ## Two million malformed frames for a running broker, one million for its gRPC door
	$(BIN)/python -m tests.fuzz.broker $(ARGS)
	$(BIN)/python -m tests.fuzz.http2 $(ARGS)

crash: $(VENV)/dev.stamp ## Hunt for crash bugs with fresh seeds, for long
	$(BIN)/python -m tests.crash.long $(ARGS)

year: $(VENV)/dev.stamp ## A year of one broker under a model: retention, crashes, wrong clocks, full disks, restores; 30 minutes at most
	$(BIN)/python -m tests.crash.year $(ARGS)

borders: $(VENV)/spark.stamp ## Hunt at the borders with fresh seeds: every driver, savepoints, cancels, chains, restores; ten minutes
	$(BIN)/python -m tests.ledger.borders $(ARGS)

docs: $(VENV)/base.stamp ## Write the generated reference pages again
	$(BIN)/python -m tools.reference docs/reference
	$(BIN)/python -m tests.conformance.table docs/reference/conformance.md
	$(BIN)/python -m tests.conformance.claims docs/reference/claims.md

site: $(VENV)/dev.stamp ## Build the documentation's site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# spark.txt holds everything; the smaller locks follow its versions, so that they can be installed
# over each other.  Nothing of the machine that ran this may end up in the files.
LOCK := $(VENV)-lock/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
  --no-emit-find-links --python-version 3.11 --custom-compile-command 'make lock' \
  --group pyproject.toml:build pyproject.toml $(LOCK_FLAGS)

lock: ## Resolve the dependencies again; LOCK_FLAGS=--upgrade takes the newest versions
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip --disable-pip-version-check --quiet install uv==$(UV_VERSION)
	$(LOCK) --extra dev --extra postgres --extra spark --extra sql -o requirements/spark.txt
	$(LOCK) --extra dev -c requirements/spark.txt -o requirements/dev.txt
	$(LOCK) -c requirements/spark.txt -o requirements/base.txt
	for version in 4.0 4.1 4.2; do \
	  $(LOCK) requirements/spark-$$version.in -c requirements/dev.txt -o requirements/spark-$$version.txt; \
	done

clean: ## Remove the environment and every cache
	rm -rf $(VENV) $(VENV)-lock $(VENV)-spark-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 13) else \
	  "EscrowMQ needs Python 3.11 to 3.13, this is " + sys.version.split()[0] + ": set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: requirements/base.txt pyproject.toml | $(BIN)/python
	$(PIP) $(LOCKED) -r requirements/base.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/base.stamp
	$(PIP) $(LOCKED) -r requirements/dev.txt
	@touch $@

# pyspark comes as source only; without isolation it is built by the setuptools of the lock.
$(VENV)/spark.stamp: requirements/spark.txt $(VENV)/dev.stamp
	$(PIP) $(LOCKED) --no-build-isolation -r requirements/spark.txt
	$(PIP) check
	@touch $@

# The base alone, beside a Spark that it did not bring, as on a cluster.
.PRECIOUS: $(VENV)-spark-%/stamp
$(VENV)-spark-%/stamp: requirements/base.txt requirements/spark-%.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP_FLAGS) $(LOCKED) -r requirements/base.txt
	$(@D)/bin/python $(PIP_FLAGS) $(LOCKED) --no-build-isolation -r requirements/spark-$*.txt
	$(@D)/bin/python $(PIP_FLAGS) install --no-deps --no-build-isolation -e .
	@touch $@
