# The gpu worker. For CPU by default:
#   docker build -f docker/worker.Dockerfile -t headrace-worker .
# For CUDA (an empty TORCH_INDEX means PyPI, whose torch for Linux on x86-64 is the CUDA build):
#   docker build -f docker/worker.Dockerfile --build-arg TORCH_INDEX= --build-arg PACKAGES="gcc libc6-dev" \
#       -t headrace-worker:cuda .

# Any image with Python 3.11 to 3.13 and pip: docker/debian_base.sh makes one without a registry.
ARG BASE=python:3.12-slim

FROM $BASE AS build
WORKDIR /app
RUN python -m venv --without-pip /opt/venv
# torch first and pinned: it is most of the image, and what follows must not exchange it.
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN echo "torch==$TORCH_VERSION" > constraints.txt \
    && pip --python /opt/venv/bin/python install --no-cache-dir \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r constraints.txt
COPY pyproject.toml ./
COPY docker/requirements.py docker/
RUN python docker/requirements.py engine > requirements.txt \
    && pip --python /opt/venv/bin/python install --no-cache-dir -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY kernels kernels
COPY worker worker
COPY api api
# Editable: the code lives in /app beside models/, as in a checkout.
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --editable . \
    && pip --python /opt/venv/bin/python check

FROM $BASE
# Debian packages: on a GPU, Triton compiles a module in C at its first start.
ARG PACKAGES=""
RUN [ -z "$PACKAGES" ] || { apt-get update && apt-get install --yes --no-install-recommends $PACKAGES \
    && rm -rf /var/lib/apt/lists/*; }
RUN groupadd --gid 10001 headrace && useradd --uid 10001 --gid 10001 --create-home headrace
WORKDIR /app
COPY --from=build /opt/venv /opt/venv
COPY models/demo/config.json models/demo/generation_config.json models/demo/model.safetensors \
    models/demo/tokenizer.json models/demo/tokenizer_config.json models/demo/
# Its heads, which only a worker reads: they are no part of what tells models apart.
COPY models/demo/medusa.safetensors models/demo/
COPY pyproject.toml Procfile ./
COPY docker/health.py docker/
COPY kernels kernels
COPY worker worker
COPY api api
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HEADRACE_HOST=0.0.0.0
USER 10001:10001
# Drains: running requests get HEADRACE_DRAIN_SECONDS, so stop it with more time than that.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m CMD ["python", "docker/health.py", "gpu"]
CMD ["celery", "--quiet", "-A", "worker.tasks.run_shard", "worker", "-Q", "gpu", "-n", "gpu@%h", \
    "--without-mingle", "--without-gossip"]
