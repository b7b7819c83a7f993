#!/usr/bin/env bash
# On the GPU machine: what prepare.py has packed becomes an environment with the CUDA stack.
#
#   bash benchmarks/gpu/install.sh piece FOLDER      takes one piece; the first starts the build of flash-attn
#   bash benchmarks/gpu/install.sh finish            installs everything, with bytecode
#
# VBX (default /tmp/vbx) is where everything goes: $VBX/venv, $VBX/tokenizer, $VBX/gsm8k, $VBX/built/flash_attn*.whl.
# PYTHON (default python3) has torch; its packages are seen by the environment, whose own ones come first.
set -euo pipefail
VBX=${VBX:-/tmp/vbx}
PYTHON=${PYTHON:-python3}
mkdir -p "$VBX/built"

build_flash_attn() {
  cd "$VBX"/flash-attn/flash_attn-*
  FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTN_CUDA_ARCHS="${FLASH_ATTN_CUDA_ARCHS:-90}" MAX_JOBS=$(nproc) NVCC_THREADS=1 \
    "$PYTHON" setup.py --quiet bdist_wheel --dist-dir "$VBX/built"
}

case "$1" in
  compile) # imports without bytecode are most of a slow start, and images often come without
    unset PYTHONDONTWRITEBYTECODE
    site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for package in "$site/torch" "$site/triton" "$site"; do "$PYTHON" -m compileall -q -j 0 "$package" || true; done
    ;;
  piece)
    if [ -e "$2/first.tar.gz" ]; then
      setsid bash "$0" compile > /dev/null 2>&1 < /dev/null &
      tar xzf "$2/first.tar.gz" -C "$VBX"
      if [ -d "$VBX/flash-attn" ]; then
        setsid bash "$0" build > "$VBX/flash-attn.log" 2>&1 < /dev/null &
      fi
    else
      cat "$2/part" >> "$VBX/rest.tar"
    fi
    ;;
  build) time build_flash_attn ;;
  finish)
    tar xf "$VBX/rest.tar" -C "$VBX" && rm "$VBX/rest.tar"
    "$PYTHON" -m venv --without-pip "$VBX/venv"
    site=$("$VBX/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/machine.pth"
    # Unpacking is most of the work: several at once, the large ones first.
    # shellcheck disable=SC2012
    ls -S "$VBX"/wheels/*.whl | awk '{ print > ("'"$VBX"'/wheels-" NR % 4) }'
    for list in "$VBX"/wheels-?; do
      # shellcheck disable=SC2046
      "$PYTHON" -m pip --quiet --python "$VBX/venv/bin/python" install --no-deps --no-index --no-compile \
        --no-warn-script-location $(cat "$list") &
    done
    wait
    unset PYTHONDONTWRITEBYTECODE
    "$VBX/venv/bin/python" -m compileall -q -j 0 "$site" > /dev/null || true # some packages carry broken examples
    ;;
esac
