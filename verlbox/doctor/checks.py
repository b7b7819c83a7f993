"""All checks, in the order in which they are shown, and the runner that collects what they say."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from verlbox import findings
from verlbox.doctor import ascend, containers, host, limits, network, nvidia, software, storage
from verlbox.doctor.subject import Check, Checked, Subject

FAILED = findings.register("doctor-check-failed", "warning", "A check of the doctor itself failed: a fault of verlbox.")

CHECKS: tuple[Check, ...] = (
    Check("system", "host", host.system),
    Check("python", "host", host.python),
    Check("processors", "host", host.processors),
    Check("memory", "host", host.main_memory),
    Check("clock", "host", host.clock),
    Check("disk", "storage", storage.disk),
    Check("shared memory", "storage", storage.shared_memory),
    Check("temporary folder", "storage", storage.temporary),
    Check("open files", "limits", limits.open_files),
    Check("processes", "limits", limits.processes),
    Check("locked memory", "limits", limits.locked_memory),
    Check("sources", "network", network.sources),
    Check("ray", "network", network.ray),
    Check("docker", "containers", containers.engine),
    Check("runtime", "containers", containers.runtime, ("npu", "cuda")),
    Check("devices", "nvidia", nvidia.devices, ("cuda",)),
    Check("driver", "nvidia", nvidia.driver, ("cuda",)),
    Check("cards", "nvidia", nvidia.state, ("cuda",)),
    Check("devices", "ascend", ascend.devices, ("npu",)),
    Check("driver", "ascend", ascend.driver, ("npu",)),
    Check("cards", "ascend", ascend.state, ("npu",)),
    Check("CANN", "ascend", ascend.cann, ("npu",)),
    Check("NNAL", "ascend", ascend.nnal, ("npu",)),
    Check("variables", "ascend", ascend.variables, ("npu",)),
    Check("packages", "software", software.packages),
    Check("conflicts", "software", software.conflicts),
    Check("torch-npu", "software", software.torch_npu, ("npu",)),
    Check("vllm", "software", software.vllm, ("npu", "cuda")),
    Check("matrix", "software", software.combination),
    Check("imports", "software", software.imports),
)


def run(subject: Subject, checks: Sequence[Check] = CHECKS) -> list[tuple[Check, Checked]]:
    """Runs the checks that concern the subject's platform, at the same time; a check that fails is a finding itself."""

    def one(check: Check) -> Checked:
        try:
            return check.function(subject)
        except Exception as error:
            problem = FAILED.finding(
                f"the check `{check.group}: {check.name}` failed: {type(error).__name__}: {error}",
                why="What it looks at was not checked; the other checks are not affected.",
                fix="Report it with the output of `python entrypoint.py doctor --json`.",
            )
            return Checked("not checked", [problem])

    relevant = [check for check in checks if subject.platform in check.platforms]
    with ThreadPoolExecutor(len(relevant)) as pool:
        return list(zip(relevant, pool.map(one, relevant), strict=True))
