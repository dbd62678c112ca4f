# `make demo` and `make test` set up everything they need; nothing has to be activated or installed first. Each target
# installs only what it needs: Spark, the browser and the peers of benchmarks come with the targets that use them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
SITE ?= .site

# Empty is off. Where it is on, as in many containers, each of the many processes that tests start compiles
# every module again, a third of its start.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help install java maven demo demo-page demo-spark page docs test check format bench bench-latency bench-memory bench-growth bench-instructions bench-stretches bench-fleet bench-spark bench-scale exactly-once fuzz spark-soak test-yarn test-taps test-pythons test-image lock release clean

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
	@echo "make docs      build the site of docs/ into .site, with warnings as errors"
	@echo "make bench-stretches  the quickest stretches of batches against the loop, on a busy machine"
	@echo "make bench-fleet  200 pipelines in one server for 10 minutes: memory, latency, drain"
	@echo "make bench-spark  what Spark costs and gives, each figure beside its goal"
	@echo "make bench-scale  what a record costs the driver of Spark, by the way it is written and the number of executors"
	@echo "make spark-soak  kill executors, workers and drivers while 2 000 000 records go exactly once through a cluster"
	@echo "make test-yarn  run pipelines on a YARN that it starts on this machine, and kill executors and drivers there"
	@echo "make test-taps  read five Singer taps from PyPI, which it installs, against real servers"
	@echo "make test-pythons  run the tests that need no server on Python 3.11 to 3.14, where they can be had"
	@echo "make test-image  build the root file system of the container image without an engine, measure it and run it"
	@echo "make lock      resolve uv.lock and constraints.txt again, after a change of dependencies"
	@echo "make release   build wheel and sdist, the SBOM and the table of licences into dist/"
	@echo "make install   create .venv with the command at .venv/bin/conduit-py"
	@echo "make format    put the code into house style"
	@echo "make clean     remove what the others made"

install: $(READY)

# What pip says, without its noise: each package, and what fails.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --constraint constraints.txt
SHOWN := grep --line-buffered -E '^ *(Collecting|Building|Installing)'

# The distribution had another name once: left in an old .venv, it would register plugins of its time.
# Debian keeps the module that makes virtual environments in a package of its own.
$(READY): pyproject.toml constraints.txt
	@rm -f .venv/.ready .venv/.ready-*
	@echo "setting up .venv: a virtual environment, then about 30 packages (half a minute, most of it download)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		(rm -rf .venv && apt-get update -q && apt-get install -qy python3-venv && $(PYTHON) -m venv .venv)
	@$(BIN)/python -m pip uninstall --quiet --yes conduit-py 2>/dev/null
	@echo "installing conduit-py, as pinned in constraints.txt:"
	@($(PIP) --editable . && touch $(READY)) | $(SHOWN); test -e $(READY)
	@echo "ready: .venv/bin/conduit-py"

# A group of pyproject.toml, which pip takes by name from version 25.1 on.
.venv/.ready-%: $(READY)
	@echo "installing what the group $* of pyproject.toml needs, as pinned in constraints.txt:"
	@($(PIP) --quiet 'pip>=25.1' && $(PIP) --editable . --group $* && touch $@) | $(SHOWN); test -e $@

# Spark and the Kafka broker of tests run on Java.
java:
	@test -n "$$JAVA_HOME" || command -v java >/dev/null || \
		(apt-get update -q && apt-get install -qy openjdk-17-jre-headless)

demo: install
	@$(BIN)/python examples/demo/run.py

demo-page: install
	@$(BIN)/conduit-py serve --pipelines examples/live --state .demo-page $(ARGS)

demo-spark: .venv/.ready-spark java
	@$(BIN)/python examples/demo/on_spark.py

# Its packages are installed again whenever the lock file changes.
page: web/node_modules/.package-lock.json
	@cd web && node build.mjs

web/node_modules/.package-lock.json: web/package-lock.json
	@cd web && npm ci --silent

# Not --quiet, with which --strict counts no warnings. The variable silences an advertisement.
docs: .venv/.ready-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(SITE)
	@echo "the site: $(SITE)/index.html"

check: .venv/.ready-test .venv/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests examples benchmarks
	$(BIN)/lint-imports

# Maven fetches the Kafka broker of tests, once.
maven:
	@command -v mvn >/dev/null || (apt-get update -q && apt-get install -qy maven)

# The tests of Spark share one cluster and one session, so they run in one process. It waits for much of its time, so the
# others run beside it, and so do the checks, each of which uses one core. What these two have printed comes last. Of the
# others each process waits for a third of its time, for servers, kills and leases: four of them keep two cores busy.
SPARK_LOG := .venv/spark-tests.log
CHECK_LOG := .venv/check.log
test: .venv/.ready-test .venv/.ready-lint .venv/.ready-docs java maven
	@$(MAKE) --no-print-directory check > $(CHECK_LOG) 2>&1 & check=$$!; \
	$(BIN)/pytest tests/spark > $(SPARK_LOG) 2>&1 & spark=$$!; trap "kill $$check $$spark 2>/dev/null" EXIT INT TERM; \
	$(BIN)/pytest -n 4 --dist worksteal --ignore=tests/spark; others=$$?; \
	echo "and the tests of Spark:"; wait $$spark; spark=$$?; cat $(SPARK_LOG); \
	echo "and make check:"; wait $$check; check=$$?; cat $(CHECK_LOG); \
	if [ $$check -ne 0 ]; then echo "make check has failed: see above"; fi; \
	exit $$((others + spark + check))

bench: .venv/.ready-bench
	@$(BIN)/python -m benchmarks $(ARGS)

bench-latency: .venv/.ready-bench
	@$(BIN)/python -m benchmarks.latency $(ARGS)

bench-memory: .venv/.ready-bench
	@$(BIN)/python -m benchmarks.memory $(ARGS)

bench-growth: .venv/.ready-bench
	@$(BIN)/python -m benchmarks growth $(ARGS)

bench-instructions: .venv/.ready-bench
	@$(BIN)/python -m benchmarks.instructions $(ARGS)

bench-stretches: .venv/.ready-bench
	@$(BIN)/python -m benchmarks.stretches $(ARGS)

bench-fleet: .venv/.ready-bench
	@$(BIN)/python -m benchmarks.fleet $(ARGS)

bench-spark: .venv/.ready-bench java
	@$(BIN)/python -m benchmarks.spark $(ARGS)

bench-scale: .venv/.ready-bench java
	@$(BIN)/python -m benchmarks.scale $(ARGS)

# Every pair of moments to be killed at, and real processes on a real disk: about half an hour.
exactly-once: .venv/.ready-test
	CONDUIT_ENUMERATE=all $(BIN)/pytest --timeout=7200 tests/exactly_once/test_crash_enumeration.py
	CONDUIT_XO_RECORDS=300000 CONDUIT_XO_KILLS=110 $(BIN)/pytest -s tests/exactly_once/test_exactly_once_processes.py

# The parsers of PostgreSQL's and MariaDB's streams, Avro, Protobuf and the frames of a registry: about half an hour.
fuzz: .venv/.ready-test
	CONDUIT_EXAMPLES=20000 $(BIN)/pytest --timeout=7200 -m hypothesis $(ARGS) tests/connectors/test_pgoutput.py tests/connectors/test_binlog_events.py tests/connectors/test_postgres_values.py tests/processors/test_avro_codec.py tests/processors/test_protobuf_processors.py tests/processors/test_jsonschema_processors.py

# On a master and two workers of its own; less with ARGS="CONDUIT_SOAK_RECORDS=200000 CONDUIT_SOAK_LIVES=2".
spark-soak: .venv/.ready-test java
	env CONDUIT_SOAK_RECORDS=2000000 CONDUIT_SOAK_LIVES=12 $(ARGS) $(BIN)/pytest -s tests/spark/test_spark_soak.py

# On a ResourceManager and a NodeManager of its own, whose jars, 65 MB, it fetches the first time: about four minutes.
test-yarn: .venv/.ready-test java
	env CONDUIT_YARN=1 $(BIN)/pytest $(ARGS) tests/spark/test_spark_yarn.py

# Five taps, each in an environment of its own, which it makes the first time: about ten minutes.
test-taps: .venv/.ready-test
	env CONDUIT_TAPS=1 $(BIN)/pytest $(ARGS) tests/connectors/test_singer_taps.py

# Both files have the same versions: uv.lock with hashes, for uv; constraints.txt for pip, which `make` uses.
lock: .venv/.ready-release
	@$(BIN)/uv lock --quiet $(ARGS)
	@echo "# The versions that \`make\` installs, from uv.lock by \`make lock\`: every test was run with these. pyproject.toml says what works." > constraints.txt
	@$(BIN)/uv export --quiet --frozen --all-groups --all-extras --no-hashes --no-emit-project --no-annotate --no-header | \
		sed "s/ ; python_full_version < '3.15' and platform_python_implementation != 'PyPy' and sys_platform != 'emscripten' and sys_platform != 'win32'$$//" >> constraints.txt

# What is released: wheel and sdist, what they bring along as CycloneDX, and the licence of each package.
release: .venv/.ready-release
	@rm -rf dist && $(BIN)/python -m build --outdir dist .
	@rm -rf .venv/shipped && $(BIN)/uv venv --quiet --python $(BIN)/python .venv/shipped
	@$(BIN)/uv export --quiet --frozen --all-extras --no-dev --no-emit-project --output-file .venv/shipped/requirements.txt
	@VIRTUAL_ENV=.venv/shipped $(BIN)/uv pip install --quiet --require-hashes --requirement .venv/shipped/requirements.txt
	@version=$$($(BIN)/python -c "import conduit_py; print(conduit_py.__version__)") && \
		sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > .venv/shipped/pyproject.toml
	@$(BIN)/cyclonedx-py environment --pyproject .venv/shipped/pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json .venv/shipped
	@$(BIN)/pip-licenses --python .venv/shipped/bin/python --format markdown --order license --output-file dist/licences.md
	@$(BIN)/python tests/support/licences.py dist/sbom.cdx.json dist/licences.md
	@ls -l dist

# The tests that need no server, with each Python that can be had here: of uv, of pyenv, on the path, or from Maven Central.
test-pythons: .venv/.ready-release
	@$(BIN)/python tests/support/pythons.py $(ARGS)

# What the container file puts into the image, with Debian's packages below it: built, measured, and run in a chroot. It
# needs Debian 12, root and the network, and mounts nothing.
test-image: .venv/.ready-release
	@$(BIN)/python tests/support/container_root.py

format: .venv/.ready-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .demo .demo-page .demo-spark .site web/node_modules dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
