"""`export slurm RECIPE`: the recipe as an sbatch script, which starts a Ray cluster on the nodes that Slurm gives.

The script holds the recipe. Its first node is the head and runs verlbox; srun starts a Ray node on each machine, and
ends them all when the run has ended. verlbox, its environment, runs and cache are on a file system that all nodes see,
at the paths that they have here. docs/cluster.md.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from verlbox import cluster, recipe
from verlbox.export import of_recipe
from verlbox.findings import EXIT_OK
from verlbox.plan import PLATFORMS, ROOT
from verlbox.recipe import Recipe
from verlbox.run import runs_folder
from verlbox.stacks import STACKS, PlatformName

HELP = "an sbatch script for Slurm"

# How Slurm is asked for devices: GPUs have options of their own, NPUs are what the site calls its gres.
DEVICES: dict[PlatformName, str] = {"cuda": "#SBATCH --gpus-per-node={}\n", "npu": "#SBATCH --gres=npu:{}\n", "cpu": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `export slurm`; overrides of the recipe may follow."""
    of_recipe.add_arguments(parser, "sbatch --time=... FILE")
    parser.add_argument("--runs", help="folder that holds the runs (default: $VERLBOX_RUNS, else ./runs)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the script. Raises FindingsError."""
    wanted = of_recipe.load(arguments, files_here=True)
    text = script(wanted, arguments.name or wanted.name, runs_folder(arguments.runs), Path(sys.executable).parent)
    of_recipe.write(text, arguments.out)
    return EXIT_OK


def script(wanted: Recipe, name: str, runs: Path, programs: Path) -> str:
    """The sbatch script of a recipe; `programs` is the folder of the environment's python and ray."""
    stack = STACKS[wanted.stack]
    devices, nodes = wanted.train.devices, wanted.cluster.nodes
    variables = PLATFORMS[stack.name].environment(wanted.train.seed)
    return SCRIPT.format(
        job=shlex.quote(name),
        nodes=nodes,
        cpus=of_recipe.node_cpus(wanted),
        memory=of_recipe.node_memory_gib(wanted),
        devices=DEVICES[stack.platform].format(devices),
        root=shlex.quote(str(ROOT)),
        programs=shlex.quote(str(programs)),
        runs=shlex.quote(str(runs)),
        exports="\n".join(f"export {key}={shlex.quote(value)}" for key, value in sorted(variables.items())),
        cann=CANN if stack.platform == "npu" else "",
        offered=shlex.join(cluster.node_options(stack.platform, devices)),
        recipe=recipe.resolved(wanted).rstrip(),
    )


CANN = """
# CANN and NNAL, whose scripts use variables that are not set.
set +u
for folder in "$HOME/Ascend/ascend-toolkit" /usr/local/Ascend/ascend-toolkit /usr/local/Ascend/cann; do
  if [ -f "$folder/set_env.sh" ]; then
    # shellcheck disable=SC1091
    source "$folder/set_env.sh"
    break
  fi
done
for folder in "$HOME/Ascend/nnal/atb" /usr/local/Ascend/nnal/atb; do
  if [ -f "$folder/set_env.sh" ]; then
    # shellcheck disable=SC1091
    source "$folder/set_env.sh" --cxx_abi=1
    break
  fi
done
set -u
"""

SCRIPT = r"""#!/bin/bash
# Made by `entrypoint.py export slurm`. Partition, account and time are the site's:
#
#   sbatch --partition=... --time=... FILE
#
# Submitted again, or requeued after a node has failed, it goes on from the run's last checkpoint.
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem={memory}G
{devices}#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@180
set -euo pipefail

verlbox={root}
runs={runs}
export PATH={programs}:"$PATH"
{cann}
{exports}
export OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0
# Ray runs whatever reaches its ports: a token of this job's own keeps others in the network out. Not an argument.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN

# Jobs that share a machine have other ports and folders. Ray's own workers use 10002 to 19999, and from 32768 on the
# kernel gives ports to whoever connects.
port=$((20000 + SLURM_JOB_ID % 1200 * 10))
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
folder=/tmp/vbx-$SLURM_JOB_ID
work=$(mktemp -d)
export port head folder
export RAY_ADDRESS=$head:$port RAY_TMPDIR=$folder

cluster="" run=""
# shellcheck disable=SC2329 # it is a trap
finish() {{
  if [ -n "$cluster" ]; then
    kill -TERM "$cluster" 2>/dev/null || true
    wait "$cluster" || true
    srun --ntasks-per-node=1 --overlap rm -rf "$folder" || true
  fi
  rm -rf "$work"
}}
trap finish EXIT
# Three minutes before the time limit, or when the job is cancelled: verl ends, and what is done is kept.
trap 'if [ -n "$run" ]; then kill -TERM "$run"; else exit 143; fi' TERM INT

# A Ray node on each machine; the first is the head, which others wait for.
# shellcheck disable=SC2016
srun --ntasks-per-node=1 --overlap bash -c '
  mkdir -p "$folder"
  agent=$((port + 2 + SLURM_PROCID))
  if [ "$SLURM_PROCID" = 0 ]; then
    exec ray start --head --block --port="$port" --ray-client-server-port="$((port + 1))" --temp-dir="$folder" \
      --include-dashboard=false --dashboard-agent-listen-port="$agent" --disable-usage-stats "$@"
  fi
  for _ in $(seq 60); do
    if ray health-check --address "$RAY_ADDRESS" >/dev/null 2>&1; then break; fi
    sleep 2
  done
  exec ray start --block --address="$RAY_ADDRESS" --dashboard-agent-listen-port="$agent" --disable-usage-stats "$@"
' ray-node --num-cpus="$SLURM_CPUS_PER_TASK" {offered} &
cluster=$!

cat >"$work/recipe.yaml" <<'RECIPE'
{recipe}
RECIPE
cat >"$work/wait.py" <<'WAIT'
import sys, time
import ray
deadline = time.monotonic() + 300
while time.monotonic() < deadline:
    try:
        ray.init(logging_level="ERROR", log_to_driver=False, ignore_reinit_error=True)
        alive = sum(node["Alive"] for node in ray.nodes())
        if alive == {nodes}:
            sys.exit(0)
        print(f"{{alive}} of {nodes} Ray nodes", flush=True)
    except ConnectionError:
        pass
    time.sleep(2)
sys.exit("the Ray nodes did not come up in 300 s")
WAIT
python "$work/wait.py" &
waiting=$!
# Whichever ends first; a cluster that ends here has failed.
wait -n "$waiting" "$cluster" || exit 1
kill -0 "$cluster"

python "$verlbox/entrypoint.py" run "$work/recipe.yaml" --name {job} --runs "$runs" &
run=$!
code=0
wait "$run" || code=$?
while kill -0 "$run" 2>/dev/null; do # a signal ends `wait`, not the run
  code=0
  wait "$run" || code=$?
done
exit "$code"
"""
