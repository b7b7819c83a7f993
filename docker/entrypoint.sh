#!/bin/bash
# The environment of CANN and NNAL, then the command. They are sourced at start, not while the image is built: what
# they export depends on the driver, which is mounted, and on the torch that is installed.
driver=/usr/local/Ascend/driver/lib64
export LD_LIBRARY_PATH="$driver/driver:$driver/common:$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/cann/set_env.sh; do
  if [ -f "$script" ]; then
    # shellcheck disable=SC1090
    source "$script"
    break
  fi
done
if [ -f /usr/local/Ascend/nnal/atb/set_env.sh ]; then
  # The C++ ABI of the pinned torch; without it the script imports torch to find out.
  source /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi=1
fi
exec "$@"
