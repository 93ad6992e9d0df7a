# Every process but the gpu worker: release, web, callbacks, dispatcher, files, flower. No torch.
#   docker build -f docker/api.Dockerfile -t headrace-api .

# Any image with Python 3.11 to 3.13 and pip: docker/debian_base.sh makes one without a registry.
ARG BASE=python:3.12-slim

FROM $BASE AS build
WORKDIR /app
RUN python -m venv --without-pip /opt/venv
# The pins before the code, so that a change of code does not install them again.
COPY pyproject.toml ./
COPY docker/requirements.py docker/
# Add parquet (150 MB) for results and prompts as Parquet.
ARG EXTRAS="flower s3"
RUN python docker/requirements.py $EXTRAS > requirements.txt \
    && pip --python /opt/venv/bin/python install --no-cache-dir -r requirements.txt
COPY README.md LICENSE ./
COPY kernels kernels
COPY worker worker
COPY api api
# Editable: the code lives in /app beside models/ and migrations/, as in a checkout.
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --editable . \
    && pip --python /opt/venv/bin/python check

FROM $BASE
RUN groupadd --gid 10001 headrace && useradd --uid 10001 --gid 10001 --create-home headrace
WORKDIR /app
COPY --from=build /opt/venv /opt/venv
# The same files of the demo model as in the worker's image: their hash tells a batch which model it waits for.
COPY models/demo/config.json models/demo/generation_config.json models/demo/model.safetensors \
    models/demo/tokenizer.json models/demo/tokenizer_config.json models/demo/
COPY pyproject.toml ./
COPY docker/health.py docker/
COPY migrations migrations
COPY kernels kernels
COPY worker worker
COPY api api
# Files are kept in /data, which web and files share.
RUN mkdir /data && chown 10001:10001 /data
ENV HEADRACE_DATA_DIR=/data
# Every process must know that the API listens beyond loopback: callbacks decides by it where it may call.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HEADRACE_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["python", "docker/health.py", "web"]
CMD ["python", "-m", "api"]
