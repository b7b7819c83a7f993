# The CUDA stacks, for x86_64: `cuda` (verl 0.9.1, vllm 0.24.0, torch 2.11.0 for CUDA 13.0, Python 3.12) and, with
# STACK=cuda-061, the verl of the NPU stack (verl 0.6.1, vllm 0.11.0, torch 2.8.0 for CUDA 12.8, Python 3.10).
#
#   docker buildx bake -f docker/docker-bake.hcl cuda
#
# torch brings the CUDA libraries that it uses, so that the base image holds little more than the driver's interface;
# the one with the compiler only builds flash-attn. Their `python3` has to be the stack's: docker-bake.hcl knows both.

ARG STACK=cuda
ARG BASE=nvidia/cuda:13.0.2-base-ubuntu24.04
ARG DEVEL=nvidia/cuda:13.0.2-devel-ubuntu24.04

# Wheels from a folder of this machine: --build-context wheels=FOLDER takes the place of this empty stage.
FROM scratch AS wheels

FROM ${BASE} AS base
# In place of http://archive.ubuntu.com, for instance https://mirrors.tuna.tsinghua.edu.cn
ARG APT_MIRROR=""
SHELL ["/bin/sh", "-euc"]
# g++ and Python's headers stay: Triton and torch.compile build their launchers when training starts.
RUN if [ -n "$APT_MIRROR" ]; then \
      find /etc/apt \( -name '*.sources' -o -name sources.list \) -exec sed -i \
        's#https\?://\(archive\|security\)\.ubuntu\.com#'"$APT_MIRROR"'#' {} +; \
    fi; \
    apt-get update; \
    apt-get install -y --no-install-recommends ca-certificates g++ python3-dev python3-venv tini; \
    rm -rf /var/lib/apt/lists/*; \
    if ! getent passwd 1000; then useradd --uid 1000 --user-group --no-create-home --home-dir /home/verlbox verlbox; fi; \
    install -d -m 1777 /runs /cache /home/verlbox

FROM base AS environment
ARG STACK
ARG PIP_INDEX_URL=https://pypi.org/simple
# 1 leaves out the wheels for the accelerator (gigabytes), to test the rest; such an image does not run.
ARG PARTIAL=""
ENV PIP_CACHE_DIR=/var/cache/pip PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# pip stays behind in this stage.
RUN case "$STACK" in cuda) wanted=3.12 ;; *) wanted=3.10 ;; esac; \
    found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
    [ -n "$PARTIAL" ] || [ "$found" = "$wanted" ] || { echo "BASE has Python $found, $STACK needs $wanted"; exit 1; }; \
    python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
WORKDIR /tmp/pins
COPY docker/pick-pins.sh docker/
COPY verlbox/setup/install.py requirements-${STACK}.txt ./
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=secret,id=netrc,target=/root/.netrc \
    python3 install.py ${PARTIAL:+--partial} "$STACK" torch engines others

# flash-attn is published as source only, and verl's critic asks for it.
FROM ${DEVEL} AS flash-attn
ARG STACK
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG APT_MIRROR=""
ARG PARTIAL=""
# Compute capabilities: A100 and H100/H200. Each takes minutes; 120 is the RTX 50 series.
ARG FLASH_ATTN_CUDA_ARCHS="80;90"
# Each job takes several gigabytes of memory.
ARG MAX_JOBS=4
ENV PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
SHELL ["/bin/sh", "-euc"]
COPY --from=environment /opt/venv /opt/venv
COPY --from=environment /opt/pip /opt/pip
COPY --from=environment /tmp/pins /tmp/pins
WORKDIR /tmp/pins
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=netrc,target=/root/.netrc \
    mkdir flash-attn; \
    if [ -z "$PARTIAL" ]; then \
      if [ -n "$APT_MIRROR" ]; then \
        find /etc/apt \( -name '*.sources' -o -name sources.list \) -exec sed -i \
          's#https\?://\(archive\|security\)\.ubuntu\.com#'"$APT_MIRROR"'#' {} +; \
      fi; \
      apt-get update; \
      apt-get install -y --no-install-recommends ninja-build python3-dev python3-venv; \
      rm -rf /var/lib/apt/lists/*; \
      python3 install.py "$STACK" flash-attn-wheel; \
    fi

FROM environment AS complete
ARG PARTIAL
RUN --mount=type=bind,from=flash-attn,source=/tmp/pins/flash-attn,target=/tmp/pins/flash-attn \
    python3 install.py ${PARTIAL:+--partial} "$STACK" flash-attn

FROM base
ARG STACK
ARG PARTIAL=""
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="verlbox ${STACK}" \
      org.opencontainers.image.description="RL post-training recipes with verl on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      io.verlbox.stack="${STACK}" \
      io.verlbox.pins="requirements-${STACK}.txt"
COPY --link --from=complete /opt/venv /opt/venv
COPY --link entrypoint.py pins.yaml requirements-*.txt /opt/verlbox/
COPY --link recipes /opt/verlbox/recipes
COPY --link verlbox /opt/verlbox/verlbox
# The container's user may have any number (docker run --user) and no entry in /etc/passwd. What is compiled at run time
# is kept in the cache: it has to be on a file system that allows execution, and is there for the next run.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/home/verlbox \
    LOGNAME=verlbox \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    VERLBOX_REVISION=${REVISION} \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    VERLBOX_RUNS=/runs \
    XDG_CACHE_HOME=/cache \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor
RUN python -m compileall -q /opt/verlbox/verlbox; \
    if [ -n "$PARTIAL" ]; then echo "partial image: its pins are not checked"; \
    else python /opt/verlbox/entrypoint.py pins check "$STACK"; fi
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /runs
ENTRYPOINT ["tini", "--", "python", "/opt/verlbox/entrypoint.py"]
CMD ["--help"]
