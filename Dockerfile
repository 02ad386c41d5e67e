# The image that members run in: streamloop and what it stands on, and nothing to build or install with.
#
#   docker build -t streamloop:0.1.0 .
#
# Your code comes by FROM (docs/deploy.md shows it, with dependencies of its own) or on a volume at /app.

# The digest is that of the published index of this tag. A base of your own: --build-arg PYTHON_IMAGE=..
ARG PYTHON_IMAGE=docker.io/library/python:3.14.7-slim-bookworm@sha256:23c59390fc717bf09f9336908199a0ae75d9c4264bf296123f94ad772fea3b52

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# Locked by hash, and wheels only: nothing is compiled, and nothing of a package runs while it is installed.
COPY image/build.lock image/requirements.lock ./
RUN python3 -m venv tools \
    && tools/bin/pip install --require-hashes --only-binary :all: -r build.lock \
    && python3 -m venv /opt/streamloop \
    && /opt/streamloop/bin/pip install --require-hashes --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY streamloop streamloop
# constraints.txt is for those who add packages. What installed all this stays behind.
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/streamloop/bin/pip install --no-deps wheels/*.whl \
    && /opt/streamloop/bin/pip freeze --exclude streamloop > /opt/streamloop/constraints.txt \
    && tools/bin/pip --python /opt/streamloop/bin/python uninstall --yes --quiet pip setuptools

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="streamloop" \
      org.opencontainers.image.description="Kafka consumers that lose nothing, stall on nothing and hide nothing." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3*/site-packages/pip* \
        /usr/local/lib/python3*/ensurepip /usr/lib/python3*/ensurepip /usr/share/python-wheels \
    && groupadd --gid 10001 streamloop \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin streamloop
COPY --from=build /opt/streamloop /opt/streamloop
# The root file system may be read-only: only /tmp is written to.
ENV PATH=/opt/streamloop/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /app
USER 10001:10001
EXPOSE 9464
# Process 1 ignores a SIGTERM that it has no handler for, and Python has none while it imports. dumb-init has, passes signals to
# streamloop alone, takes over its exit code, and reaps what nobody waits for. No HEALTHCHECK: the probes of /live and /ready are better.
ENTRYPOINT ["dumb-init", "--single-child", "--", "streamloop"]
CMD ["--help"]
