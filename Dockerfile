# An image with the program `orc`: the first argument of a container is its role, as in
#
#     docker run … IMAGE supervisor run
#     docker run … IMAGE worker run my_agents:agent
#
# docs/guides/containers.md shows how to build and run it. The base has Python 3.11.3 or newer as `python3`, with the module
# venv; all stages use the same one, so that the environment fits its interpreter.
ARG BASE=python:3.13-slim

# --------------------------------------------------------------------------------------------------------------- builders
# pip has an environment of its own, so that the image has none.
FROM ${BASE} AS pip
RUN python3 -m venv /pip
WORKDIR /source

# The libraries, which change seldom, without the source. The secret `pip` is a pip.conf, for a private package index.
FROM pip AS libraries
COPY requirements/image.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/orc \
    && /pip/bin/pip --python /opt/orc/bin/python install --disable-pip-version-check --quiet --no-compile \
       --only-binary :all: --require-hashes --requirement requirements/image.txt \
    && /opt/orc/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/orc/lib

# The project, below /package as it will lie below /. `pip check` fails if the lock lacks something for this Python.
FROM libraries AS package
COPY requirements/build.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    /pip/bin/pip install --disable-pip-version-check --quiet --require-hashes --requirement requirements/build.txt
COPY . .
RUN /pip/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist . \
    && /pip/bin/pip --python /opt/orc/bin/python install --quiet --no-index --no-deps --no-compile --root /package /dist/*.whl \
    && /opt/orc/bin/python -m compileall -q --invalidation-mode unchecked-hash -s /package /package/opt/orc/lib \
    && mkdir /package/app \
    && cp --archive /package/. / \
    && /pip/bin/pip --python /opt/orc/bin/python check

# ------------------------------------------------------------------------------------------------------------------ image
FROM ${BASE}
COPY --from=libraries /opt/orc /opt/orc
COPY --from=package /package /

# The root file system may be read-only: bytecode is compiled above, and the program writes no files. The address of the
# health server is the container's own loopback address, which nothing but the health check reaches.
ENV PATH=/opt/orc/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORC_SUPERVISOR__HEALTH=127.0.0.1:9471 \
    ORC_WORKER__HEALTH=127.0.0.1:9471

# Modules with agents, from a volume or an image built on this one. The current directory is searched for them.
WORKDIR /app
# By number, so that Kubernetes can verify that it is not root; it needs no entry in /etc/passwd.
USER 65532:65532
ENTRYPOINT ["orc"]
CMD ["--help"]
STOPSIGNAL SIGTERM
# Fails when a loop of the process no longer turns. It asks the process itself, not Redis, because a restart does not
# repair an outage of Redis.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-P", "-m", "orchestrator.monitoring.probe", "live"]

# `make image` adds the version, the commit and its date with --label: podman and buildah of some versions keep a label
# with the value of an old build argument in their cache.
ARG BASE
LABEL org.opencontainers.image.title="redis-orchestrator" \
      org.opencontainers.image.description="Coordinates teams of agents through Redis." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.base.name="${BASE}"
