# The NPU stack: verl 0.6.1, vllm and vllm-ascend 0.11.0, torch 2.7.1 with torch-npu on CANN 8.3.RC2, for Atlas A2 (910B)
# on x86_64 and aarch64. docs/images.md explains the versions.
#
#   docker buildx bake -f docker/docker-bake.hcl npu
#
# verlbox/setup/install.py knows what is installed in which order: torch, vllm (built empty) and vllm-ascend, the rest,
# verl. `pins check` at the end says whether the set holds together.

# An image with CANN, NNAL and Python 3.11 as `python3`.
ARG BASE=quay.io/ascend/cann:8.3.rc2-910b-ubuntu22.04-py3.11

# Wheels from a folder of this machine: --build-context wheels=FOLDER takes the place of this empty stage.
FROM scratch AS wheels

FROM ${BASE} AS base
# In place of http://archive.ubuntu.com and http://ports.ubuntu.com, for instance https://mirrors.tuna.tsinghua.edu.cn
ARG APT_MIRROR=""
SHELL ["/bin/sh", "-euc"]
RUN if [ -n "$APT_MIRROR" ]; then \
      find /etc/apt \( -name '*.sources' -o -name sources.list \) -exec sed -i \
        's#https\?://\(archive\|security\|ports\)\.ubuntu\.com#'"$APT_MIRROR"'#' {} +; \
    fi; \
    if ! command -v tini; then \
      apt-get update; \
      apt-get install -y --no-install-recommends tini; \
      rm -rf /var/lib/apt/lists/*; \
    fi; \
    if ! getent passwd 1000; then useradd --uid 1000 --user-group --no-create-home --home-dir /home/verlbox verlbox; fi; \
    install -d -m 1777 /runs /cache /home/verlbox

FROM ${BASE} AS environment
ARG PIP_INDEX_URL=https://pypi.org/simple
# For x86_64: torch 2.7.1+cpu, which torch-npu asks for, is only there.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# For a base with CANN 8.5.0: 2.7.1.post2, in place of the pinned torch-npu.
ARG TORCH_NPU=""
# 1 leaves out the wheels for the accelerator (gigabytes), to test the rest; such an image does not run.
ARG PARTIAL=""
ENV PIP_CACHE_DIR=/var/cache/pip PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
SHELL ["/bin/sh", "-euc"]
# pip stays behind in this stage.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
WORKDIR /tmp/pins
COPY docker/pick-pins.sh docker/
COPY verlbox/setup/install.py requirements-npu*.txt ./
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=secret,id=netrc,target=/root/.netrc \
    python3 install.py ${PARTIAL:+--partial} npu

FROM base
ARG PARTIAL=""
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="verlbox npu" \
      org.opencontainers.image.description="RL post-training recipes with verl on Ascend NPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      io.verlbox.stack="npu" \
      io.verlbox.pins="requirements-npu.txt"
COPY --link --from=environment /opt/venv /opt/venv
COPY --link entrypoint.py pins.yaml requirements-*.txt /opt/verlbox/
COPY --link docker/entrypoint.sh /opt/verlbox/docker/
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
    XDG_CACHE_HOME=/cache \
    RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1 \
    VLLM_ASCEND_ENABLE_NZ=0
RUN python -m compileall -q /opt/verlbox/verlbox; \
    if [ -n "$PARTIAL" ]; then echo "partial image: its pins are not checked"; \
    else python /opt/verlbox/entrypoint.py pins check npu; fi
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /runs
ENTRYPOINT ["tini", "--", "/opt/verlbox/docker/entrypoint.sh", "python", "/opt/verlbox/entrypoint.py"]
CMD ["--help"]
