# Postgres from Debian's packages, behind the interface of the official image: for tests without a registry.
ARG BASE=python:3.12-slim
FROM $BASE
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql-common \
    && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf \
    && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/*
COPY postgres.sh /usr/local/bin/
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["sh", "/usr/local/bin/postgres.sh"]
CMD ["postgres"]
