# One entry point: every target does its own set-up in .venv.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 2

.PHONY: demo test golden-diff coverage test-slow test-finite test-train test-flower test-flower-range test-nvflare test-nvflare-range test-spark fuzz test-browser test-wheel test-types lint docs notebooks release benchmark benchmark-check clean

demo: .venv/installed  ## the main job on embedded real data, ends with a page to look at
	$(BIN)/robfcp demo -o out

# Bytecode is kept, even where the environment forbids it: else both workers, and every process that
# a test starts, compile the package and the tests again.
QUICK = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile \
	-m "not slow and not train and not flower and not nvflare and not browser and not spark"

test: .venv/dev  ## lint, types and the quick tests
	$(MAKE) --no-print-directory lint
	$(QUICK)

BASE ?= HEAD~1
CASES ?=
golden-diff: .venv/dev  ## every byte of the golden cases beside another commit: BASE=main CASES="by/ hostile"
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/golden_diff.py $(BASE) $(CASES)

coverage: .venv/dev  ## the quick tests again, with the branches they leave out
	COVERAGE_WITHOUT_INTEGRATIONS="robfcp/integrations/*" COVERAGE_WITHOUT_TORCH="robfcp/experiments/training/*" \
	COVERAGE_WITHOUT_SPARK="robfcp/fleet/_spark.py" \
	$(QUICK) --cov --cov-report=term:skip-covered --cov-fail-under=95

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-slow: .venv/dev  ## seeded simulations that would fail if a theorem were wrong
	EFFORT=8 $(BIN)/python -m pytest -n 2 \
		-m "(slow or effort) and not train and not flower and not nvflare and not browser and not spark"

test-finite: .venv/dev  ## a thousand rounds: no infinite threshold where exact counts give a finite one
	EFFORT=40 $(BIN)/python -m pytest tests/defense/test_finite_thresholds.py

test-train: .venv/train  ## a short real federated training run
	$(BIN)/python -m pytest -m train --cov=robfcp/experiments/training --cov-report=term --cov-fail-under=80

test-flower: .venv-flower/installed  ## Flower: faults, Ray simulation and a deployment over TLS
	COVERAGE_WITHOUT_INTEGRATIONS="robfcp/integrations/nvflare.py" \
	.venv-flower/bin/python -m pytest tests/flower tests/test_integrations.py \
		"tests/fuzz/test_fuzz.py::test_nothing_escapes[flower-16-3]" \
		"tests/test_notebooks.py::test_a_notebook_runs[flower]" \
		--cov=robfcp/integrations --cov-report=term --cov-fail-under=95

FLWR_RANGE ?= 1.32.1 1.42.0
test-flower-range:  ## rounds in this process on the lowest and the highest flwr of the range
	for version in $(FLWR_RANGE); do \
		$(PYTHON) -m venv .venv-flower-$$version && \
		.venv-flower-$$version/bin/pip install --quiet --disable-pip-version-check pytest \
			"flwr==$$version" -e ".[flower,sklearn,privacy,demo]" && \
		.venv-flower-$$version/bin/python -m pytest tests/flower -m "not slow" || exit 1; \
	done

test-nvflare: .venv-nvflare/installed  ## NVFlare: faults, simulator, local and secured deployments
	COVERAGE_WITHOUT_INTEGRATIONS="robfcp/integrations/flower*.py" \
	.venv-nvflare/bin/python -m pytest tests/nvflare tests/test_integrations.py \
		"tests/fuzz/test_fuzz.py::test_nothing_escapes[nvflare-10-3]" \
		--cov=robfcp/integrations --cov-report=term --cov-fail-under=95

NVFLARE_RANGE ?= 2.8.0
test-nvflare-range:  ## rounds in this process on the other nvflare of the range
	for version in $(NVFLARE_RANGE); do \
		$(PYTHON) -m venv .venv-nvflare-$$version && \
		.venv-nvflare-$$version/bin/pip install --quiet --disable-pip-version-check pytest \
			"nvflare==$$version" -e ".[nvflare,sklearn,privacy,demo]" && \
		.venv-nvflare-$$version/bin/python -m pytest tests/nvflare -m "not slow" || exit 1; \
	done

test-spark: .venv-spark/installed  ## a cluster of two executors in processes of their own, one of which is killed; MLflow
	PYSPARK_PYTHON=$(CURDIR)/.venv-spark/bin/python .venv-spark/bin/python -m pytest tests/spark -m spark
	.venv-spark/bin/python -m pytest tests/test_mlflow.py

MINUTES ?= 60
SEED ?= $(shell date +%j)
fuzz: .venv/dev .venv-flower/installed .venv-nvflare/installed  ## every night: hostile files, rounds and requests
	$(BIN)/python tests/fuzz/run.py files loopback --seed $(SEED) --seconds $$(( $(MINUTES) * 30 ))
	.venv-flower/bin/python tests/fuzz/run.py flower --seed $(SEED) --seconds $$(( $(MINUTES) * 15 ))
	.venv-nvflare/bin/python tests/fuzz/run.py nvflare --seed $(SEED) --seconds $$(( $(MINUTES) * 15 ))

test-browser: .venv/browser  ## the calibration page in a real headless Chromium
	$(BIN)/python -m pytest tests/browser

docs: .venv/docs  ## build the documentation strictly into site/ (--quiet would hide its warnings from --strict)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: .venv/dev .venv-flower/installed  ## run the notebooks, keep their outputs, write their pages
	$(BIN)/python scripts/notebooks.py
	.venv-flower/bin/python scripts/notebooks.py flower

release: .venv/dev  ## wheel, source and bill of materials into dist/
	$(BIN)/pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python scripts/sbom.py > dist/robfcp.cdx.json

test-wheel: .venv/dev  ## the built wheel in clean environments, with every Python from 3.10 to 3.13 there is
	rm -rf build/wheel
	$(BIN)/pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir build/wheel
	$(BIN)/python scripts/try_wheel.py build/wheel/robfcp-*.whl

TYPES := build/types
test-types: .venv/dev  ## the examples under mypy and pyright, with the wheel as their users have it
	rm -rf $(TYPES) && mkdir -p $(TYPES)/examples
	$(BIN)/pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --wheel --outdir $(TYPES)
	$(PYTHON) -m venv $(TYPES)/venv
	$(TYPES)/venv/bin/pip install --quiet --disable-pip-version-check mypy basedpyright \
		"$$(ls $(TYPES)/robfcp-*.whl)[figures]"
	cp examples/*.py $(TYPES)/examples
	echo '{"typeCheckingMode": "standard", "reportMissingImports": false}' \
		> $(TYPES)/examples/pyrightconfig.json
	cd $(TYPES)/examples && ../venv/bin/mypy --ignore-missing-imports --check-untyped-defs . && \
		../venv/bin/basedpyright --level error --pythonpath ../venv/bin/python

benchmark: .venv/dev  ## every stage up to a million clients; rewrites docs/speed.md
	$(BIN)/python benchmarks/run.py

benchmark-check: .venv/dev  ## a stage of twice the time fails: ratios beside their baseline
	$(BIN)/python benchmarks/check.py

clean:
	rm -rf .venv .venv-* site out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@echo "setting up .venv (once, about a minute)"
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[demo]"
	@touch $@

.venv/dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

.venv/train: .venv/dev
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 -e ".[train]"
	@touch $@

# Its own environment: flwr pins older versions of typer and rich than the rest is tested with.
.venv-flower/installed: pyproject.toml
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 pytest \
		pytest-cov "flwr[simulation]==1.41.0" -e ".[flower,sklearn,privacy,demo]"
	@touch $@

# With Flower beside it, so that both engines can be compared on the same reports.
.venv-nvflare/installed: pyproject.toml
	$(PYTHON) -m venv .venv-nvflare
	.venv-nvflare/bin/pip install --quiet --disable-pip-version-check pytest pytest-cov \
		"nvflare==2.9.0" "flwr==1.41.0" -e ".[nvflare,sklearn,privacy,demo]"
	@touch $@

# Debian's headless Java where there is none.
.venv-spark/installed: pyproject.toml
	$(PYTHON) -m venv .venv-spark
	.venv-spark/bin/pip install --quiet --disable-pip-version-check pytest mlflow-skinny \
		"pyspark==4.3.0" -e ".[spark]"
	command -v java >/dev/null || { apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless; }
	@touch $@

# Debian's Chromium; playwright only drives it.
.venv/browser: .venv/dev
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[browser]"
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; }
	@touch $@

.venv/docs: .venv/dev
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@
