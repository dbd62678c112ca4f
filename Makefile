# `make demo` and `make test` set up everything they need; nothing has to be activated or installed first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

# Empty is off. Where it is on, as in many containers, each of the many processes that tests start compiles
# every module again, a third of its start.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help install java maven demo demo-page demo-spark page test check format bench bench-latency bench-memory bench-growth bench-instructions bench-stretches bench-fleet bench-spark exactly-once spark-soak test-yarn test-taps clean

help:
	@echo "make demo      set up and run the main job: many sources, many destinations, dead letters"
	@echo "make demo-page serve pipelines that never end, to see and operate them in a browser"
	@echo "make demo-spark the same job as make demo on a Spark cluster of this machine: a master and two workers"
	@echo "make test      set up, then lint, type-check and run every test"
	@echo "make check     only lint, types and import rules"
	@echo "make bench     compare with loops by hand, bytewax, DuckDB and polars, as ratios of one run"
	@echo "make bench-latency, bench-memory, bench-growth  how long, how much, and how it grows"
	@echo "make bench-instructions  count the instructions of a record with valgrind, whatever the load of the machine"
	@echo "make exactly-once  attack exactly-once delivery in full, which takes about half an hour"
	@echo "make page      build the web page from web/ into conduit_py/server/page, which is committed (needs node 20)"
	@echo "make bench-stretches  the quickest stretches of batches against the loop, on a busy machine"
	@echo "make bench-fleet  200 pipelines in one server for 10 minutes: memory, latency, drain"
	@echo "make bench-spark  what Spark costs and gives, each figure beside its goal"
	@echo "make spark-soak  kill executors, workers and drivers while 2 000 000 records go exactly once through a cluster"
	@echo "make test-yarn  run pipelines on a YARN that it starts on this machine, and kill executors and drivers there"
	@echo "make test-taps  read five Singer taps from PyPI, which it installs, against real servers"
	@echo "make install   create .venv with the command at .venv/bin/conduit-py"
	@echo "make format    put the code into house style"
	@echo "make clean     remove what the others made"

install: $(READY)

# The distribution had another name once: left in an old .venv, it would register plugins of its time.
# Debian keeps the module that makes virtual environments in a package of its own.
$(READY): pyproject.toml constraints.txt
	@rm -rf .venv/.ready
	@echo "setting up .venv: a virtual environment, then about 100 packages (one to five minutes, most of it download)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		(rm -rf .venv && apt-get update -q && apt-get install -qy python3-venv && $(PYTHON) -m venv .venv)
	@$(BIN)/python -m pip uninstall --quiet --yes conduit-py 2>/dev/null
	@echo "installing conduit-py and what its tests need, as pinned in constraints.txt:"
	@($(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --constraint constraints.txt \
		--editable '.[dev]' && touch $(READY)) | grep --line-buffered -E '^ *(Collecting|Building|Installing)'; test -e $(READY)
	@echo "ready: .venv/bin/conduit-py"

# Spark and the Kafka broker of tests run on Java.
java:
	@test -n "$$JAVA_HOME" || command -v java >/dev/null || \
		(apt-get update -q && apt-get install -qy openjdk-17-jre-headless)

demo: install
	@$(BIN)/python examples/demo/run.py

demo-page: install
	@$(BIN)/conduit-py serve --pipelines examples/live --state .demo-page $(ARGS)

demo-spark: install java
	@$(BIN)/python examples/demo/on_spark.py

# Its packages are installed anew whenever the lock file changes.
page: web/node_modules/.package-lock.json
	@cd web && node build.mjs

web/node_modules/.package-lock.json: web/package-lock.json
	@cd web && npm ci --silent

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests examples benchmarks
	$(BIN)/lint-imports

# Maven fetches the Kafka broker of tests, once.
maven:
	@command -v mvn >/dev/null || (apt-get update -q && apt-get install -qy maven)

# The tests of Spark share one cluster and one session, so they run in one process. It waits for much of its time, so the
# others run beside it, and so do the checks, each of which uses one core. What these two have printed comes last.
SPARK_LOG := .venv/spark-tests.log
CHECK_LOG := .venv/check.log
test: install java maven
	@$(MAKE) --no-print-directory check > $(CHECK_LOG) 2>&1 & check=$$!; \
	$(BIN)/pytest tests/spark > $(SPARK_LOG) 2>&1 & spark=$$!; trap "kill $$check $$spark 2>/dev/null" EXIT INT TERM; \
	$(BIN)/pytest -n 2 --dist worksteal --ignore=tests/spark; others=$$?; \
	echo "and the tests of Spark:"; wait $$spark; spark=$$?; cat $(SPARK_LOG); \
	echo "and make check:"; wait $$check; check=$$?; cat $(CHECK_LOG); \
	if [ $$check -ne 0 ]; then echo "make check has failed: see above"; fi; \
	exit $$((others + spark + check))

bench: install
	@$(BIN)/python -m benchmarks $(ARGS)

bench-latency: install
	@$(BIN)/python -m benchmarks.latency $(ARGS)

bench-memory: install
	@$(BIN)/python -m benchmarks.memory $(ARGS)

bench-growth: install
	@$(BIN)/python -m benchmarks growth $(ARGS)

bench-instructions: install
	@$(BIN)/python -m benchmarks.instructions $(ARGS)

bench-stretches: install
	@$(BIN)/python -m benchmarks.stretches $(ARGS)

bench-fleet: install
	@$(BIN)/python -m benchmarks.fleet $(ARGS)

bench-spark: install java
	@$(BIN)/python -m benchmarks.spark $(ARGS)

# Every pair of moments to be killed at, and real processes on a real disk: about half an hour.
exactly-once: install
	CONDUIT_ENUMERATE=all $(BIN)/pytest --timeout=7200 tests/exactly_once/test_crash_enumeration.py
	CONDUIT_XO_RECORDS=300000 CONDUIT_XO_KILLS=110 $(BIN)/pytest -s tests/exactly_once/test_exactly_once_processes.py

# On a master and two workers of its own; less with ARGS="CONDUIT_SOAK_RECORDS=200000 CONDUIT_SOAK_LIVES=2".
spark-soak: install java
	env CONDUIT_SOAK_RECORDS=2000000 CONDUIT_SOAK_LIVES=12 $(ARGS) $(BIN)/pytest -s tests/spark/test_spark_soak.py

# On a ResourceManager and a NodeManager of its own, whose jars, 65 MB, it fetches the first time: about four minutes.
test-yarn: install java
	env CONDUIT_YARN=1 $(BIN)/pytest $(ARGS) tests/spark/test_spark_yarn.py

# Five taps, each in an environment of its own, which it makes the first time: about ten minutes.
test-taps: install
	env CONDUIT_TAPS=1 $(BIN)/pytest $(ARGS) tests/connectors/test_singer_taps.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .demo .demo-page .demo-spark web/node_modules dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
