#!/bin/sh
# Prints the pins of a requirement file, hashes included, whose names match a pattern, or (drop) all others.
#
#   pick-pins.sh keep|drop 'torch|torch-npu' requirements-npu-torch.txt
set -eu
awk -v mode="$1" -v names="^($2)(\\\\[[^]]*\\\\])?==" '/^[^ #]/ { matches = $0 ~ names } mode == "keep" ? matches : !matches' "$3"
