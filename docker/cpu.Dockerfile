# The CPU stacks: real verl without an accelerator, for the smoke recipe, reports and CI. docs/images.md explains.
#
#   docker buildx bake -f docker/docker-bake.hcl cpu
#   docker build -f docker/cpu.Dockerfile -t verlbox/cpu .
#
# There is no `# syntax` line: it would fetch a frontend from a registry, and the engine's own is enough.

# An image with Python 3.11 as `python3`.
ARG BASE=python:3.11-slim

# Wheels from a folder of this machine: --build-context wheels=FOLDER takes the place of this empty stage.
FROM scratch AS wheels

FROM ${BASE} AS base
# In place of http://deb.debian.org, for instance https://mirrors.tuna.tsinghua.edu.cn
ARG APT_MIRROR=""
SHELL ["/bin/sh", "-euc"]
RUN if [ -n "$APT_MIRROR" ]; then \
      find /etc/apt \( -name '*.sources' -o -name sources.list \) -exec sed -i \
        's#https\?://\(deb\|security\)\.debian\.org#'"$APT_MIRROR"'#' {} +; \
    fi; \
    if ! command -v tini; then \
      apt-get update; \
      apt-get install -y --no-install-recommends tini; \
      rm -rf /var/lib/apt/lists/*; \
    fi; \
    if ! getent passwd 1000; then useradd --uid 1000 --user-group --no-create-home --home-dir /home/verlbox verlbox; fi; \
    install -d -m 1777 /runs /cache /home/verlbox

FROM ${BASE} AS environment
ARG STACK=cpu
ARG PIP_INDEX_URL=https://pypi.org/simple
# The CPU build of PyTorch; where that index does not answer, PyPI's build does the same job and is 3 GB larger.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_CACHE_DIR=/var/cache/pip PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
SHELL ["/bin/sh", "-euc"]
# pip stays behind in this stage.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
WORKDIR /tmp/pins
COPY verlbox/setup/install.py requirements-${STACK}.txt ./
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=secret,id=netrc,target=/root/.netrc \
    python3 install.py "$STACK"

FROM base
ARG STACK=cpu
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="verlbox ${STACK}" \
      org.opencontainers.image.description="RL post-training recipes with verl on a CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      io.verlbox.stack="${STACK}" \
      io.verlbox.pins="requirements-${STACK}.txt"
COPY --link --from=environment /opt/venv /opt/venv
COPY --link entrypoint.py pins.yaml requirements-*.txt /opt/verlbox/
COPY --link recipes /opt/verlbox/recipes
COPY --link verlbox /opt/verlbox/verlbox
# The container's user may have any number (docker run --user) and no entry in /etc/passwd.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/home/verlbox \
    LOGNAME=verlbox \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    VERLBOX_REVISION=${REVISION} \
    VERLBOX_RUNS=/runs \
    XDG_CACHE_HOME=/cache
RUN python -m compileall -q /opt/verlbox/verlbox && python /opt/verlbox/entrypoint.py pins check "$STACK"
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /runs
ENTRYPOINT ["tini", "--", "python", "/opt/verlbox/entrypoint.py"]
CMD ["--help"]
