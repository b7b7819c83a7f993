"""The sbatch script: sound as a script, and run for real by stand-ins for Slurm's two commands on one machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.cluster_recipe import SHORT, assert_both_nodes_trained
from verlbox import cli, process

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
JOB = 4_000_017


# Tasks of a step are processes here; each says which one it is, and all end with the step.
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; exit 143' TERM
for task in 0 1; do SLURM_PROCID=$task SLURM_NODEID=$task "$@" & done
wait
"""
SCONTROL = "#!/bin/bash\nprintf 'localhost\\nother\\n'\n"


def exported(file: Path, *arguments: str) -> str:
    assert cli.main(["export", "slurm", *arguments, "--out", str(file)]) == 0
    return file.read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_the_script_of_every_recipe_is_sound(name: str, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    exported(file, name, "cluster.nodes=2")
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; bash -n found nothing")
    checked = subprocess.run([shellcheck, str(file)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_it_asks_for_the_nodes_and_devices_of_the_recipe(tmp_path: Path) -> None:
    text = exported(tmp_path / "a", "npu-grpo-official", "cluster.nodes=2", "--name", "b")
    assert "#SBATCH --job-name=b\n" in text and "#SBATCH --nodes=2\n" in text and "#SBATCH --gres=npu:4\n" in text
    assert "export RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1\n" in text
    assert """'--resources={"NPU":4}'""" in text
    text = exported(tmp_path / "b", "cuda-ppo", "train.devices=8")
    assert "#SBATCH --gpus-per-node=8\n" in text and "--num-gpus=8" in text and "CANN" not in text


def test_it_asks_for_memory_as_the_pods_do(tmp_path: Path) -> None:
    # Slurm counts in units of 1024: its 512G are Kubernetes' 512Gi.
    for name, override, memory in (("cuda-ppo", "train.devices=8", 512), ("smoke", "cluster.nodes=2", 16)):
        assert f"#SBATCH --mem={memory}G\n" in exported(tmp_path / f"{name}.sbatch", name, override)
        pods = tmp_path / f"{name}.yaml"
        assert cli.main(["export", "kuberay", name, override, "--out", str(pods)]) == 0
        assert f"memory: {memory}Gi\n" in pods.read_text()


def test_the_ports_of_every_job_lie_between_rays_workers_and_the_kernels_own(tmp_path: Path) -> None:
    line = next(x for x in exported(tmp_path / "a", "smoke").splitlines() if x.startswith("port="))
    loop = f"for SLURM_JOB_ID in $(seq 3999000 4001500); do {line}; echo $port; done"
    made = subprocess.run(["bash", "-c", loop], capture_output=True, text=True, check=True).stdout.split()
    ports = {int(port) for port in made}
    assert (min(ports), max(ports), len(ports)) == (20000, 31990, 1200)
    assert all(port % 10 == 0 for port in ports), "each job has ten of them"


def test_the_jobs_own_cluster_is_joined_whatever_the_recipe_says(tmp_path: Path) -> None:
    text = exported(tmp_path / "a", "smoke", "cluster.nodes=2", "cluster.address=10.0.0.7:6379")
    assert "10.0.0.7" not in text and "export RAY_ADDRESS=$head:$port" in text


def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of the batch step of a job on two nodes, both of them this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(JOB),
        "SLURM_JOB_NODELIST": "localhost,other",
        "SLURM_CPUS_PER_TASK": "2",
        "VERLBOX_CACHE": str(tmp_path / "cache"),
        process.TAG: str(tmp_path),  # so that the test can find everything that it started
    }


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_on_two_nodes_trains_is_stopped_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="real runs need the CPU stack (make install)")
    file, runs = tmp_path / "job.sbatch", tmp_path / "runs"
    exported(file, "smoke-cluster", *SHORT, "--name", "job", "--runs", str(runs))
    environment = slurm(tmp_path)
    try:
        output = tmp_path / "first.log"
        with output.open("w") as stream:
            first = subprocess.Popen(["bash", str(file)], env=environment, stdout=stream, stderr=subprocess.STDOUT)
            while "step 3/" not in output.read_text():
                assert first.poll() is None, output.read_text()
                time.sleep(0.1)
            first.send_signal(signal.SIGTERM)  # as --signal=B:TERM does before the time limit
            assert first.wait(120) == 143, output.read_text()
        assert process.tagged(str(tmp_path)) == [], "the job's cluster is gone with it"
        second = subprocess.run(
            ["bash", str(file)], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert second.returncode == 0, second.stdout + second.stderr
        assert re.search("resuming after step [24] of 6", second.stderr), second.stderr
        assert_both_nodes_trained(runs / "job")
        assert process.tagged(str(tmp_path)) == []
        assert not Path(f"/tmp/vbx-{JOB}").exists()
    finally:
        process.end_tagged(str(tmp_path))
