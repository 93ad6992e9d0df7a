# Redis from Debian's packages, behind the interface of the official image: for tests without a registry.
ARG BASE=python:3.12-slim
FROM $BASE
RUN apt-get update && apt-get install --yes --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
COPY redis.sh /usr/local/bin/
ENTRYPOINT ["sh", "/usr/local/bin/redis.sh"]
CMD ["redis-server"]
