"""Versions that cannot work together, from the packages' own requirements.

Source of each rule: the metadata (Requires-Dist) of the release named, or the reason given. The stacks' own pins and
their accepted conflicts are not judged here, only pairs that are known to break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from verlbox.findings import Finding, register
from verlbox.lints.settings import Settings

CONFLICT = register("versions-conflict", "error", "Two installed versions cannot work together.")

Version = tuple[int, ...]

# vllm release -> the torch it is built for (its Requires-Dist: torch==...); a build for no device has no such bond.
_VLLM_TORCH = {
    "0.6.3": "2.4.0",
    "0.6.4": "2.5.1",
    "0.6.5": "2.5.1",
    "0.6.6": "2.5.1",
    "0.7.0": "2.5.1",
    "0.7.1": "2.5.1",
    "0.7.2": "2.5.1",
    "0.7.3": "2.5.1",
    "0.8.0": "2.6.0",
    "0.8.1": "2.6.0",
    "0.8.2": "2.6.0",
    "0.8.3": "2.6.0",
    "0.8.4": "2.6.0",
    "0.8.5": "2.6.0",
    "0.9.0": "2.7.0",
    "0.9.1": "2.7.0",
    "0.9.2": "2.7.0",
    "0.10.0": "2.7.1",
    "0.10.1": "2.7.1",
    "0.10.2": "2.8.0",
    "0.11.0": "2.8.0",
    "0.24.0": "2.11.0",
}
# torch-npu release, with its post number -> CANN (Ascend's release notes; pins of the stacks).
_TORCH_NPU_CANN = {"2.7.1": "8.3", "2.7.1.post2": "8.5", "2.7.1.post4": "9.0", "2.7.1.post8": "9.1"}


def release(version: str) -> Version:
    """(2, 7, 1) of '2.7.1+cpu', '2.7.1.post2', '0.11.0rc1'."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def at_least(version: Version, bound: Version) -> bool:
    width = max(len(version), len(bound))
    return version + (0,) * (width - len(version)) >= bound + (0,) * (width - len(bound))


def _same(left: Version, right: Version) -> bool:
    return at_least(left, right) and at_least(right, left)


def _conflict(left: str, right: str, why: str, fix: str) -> Finding:
    return CONFLICT.finding(f"{left} does not go with {right}", why=why, fix=fix)


def verl_and_its_libraries(s: Settings) -> Iterator[Finding]:
    found = {name: release(version) for name, version in s.facts.packages.items()}
    shown = {name: f"{name} {version}" for name, version in s.facts.packages.items()}
    verl = found.get("verl") or (release(s.facts.verl) if s.facts.verl else (0, 6, 1))
    verl_shown = f"verl {'.'.join(map(str, verl))}"
    tensordict = found.get("tensordict")
    if tensordict and at_least(verl, (0, 5)):
        inside = at_least(tensordict, (0, 8)) and at_least((0, 10, 0), tensordict) and not _same(tensordict, (0, 9, 0))
        if not inside:
            yield _conflict(
                shown["tensordict"],
                verl_shown,
                "verl requires tensordict >=0.8.0,<=0.10.0,!=0.9.0 (setup.py).",
                "tensordict==0.10.0",
            )
    transformers = found.get("transformers")
    if transformers and at_least(transformers, (5,)) and not at_least(verl, (0, 8)):
        yield _conflict(
            shown["transformers"],
            verl_shown,
            "AutoModelForVision2Seq is gone in transformers 5 and verl imports it (fsdp_workers.py); its setup.py"
            " has no upper"
            " bound.",
            "transformers==4.57.1",
        )
    if transformers and at_least(verl, (0, 9)) and not at_least(transformers, (5, 5, 3)):
        yield _conflict(
            shown["transformers"], verl_shown, "verl 0.9.1 requires transformers >=5.5.3.", "transformers==5.9.0"
        )
    numpy = found.get("numpy")
    if numpy and at_least(numpy, (2,)) and not at_least(verl, (0, 8)) and ("verl" in found or s.facts.verl):
        yield _conflict(shown["numpy"], verl_shown, "verl 0.6.1 requires numpy<2.0.0.", "numpy==1.26.4")
    if numpy and not at_least(numpy, (2,)) and at_least(verl, (0, 9)):
        yield _conflict(shown["numpy"], verl_shown, "verl 0.9.1 requires numpy>=2.0.0.", "numpy>=2.0.0")
    pyarrow = found.get("pyarrow")
    if pyarrow and not at_least(pyarrow, (19,)):
        yield _conflict(shown["pyarrow"], verl_shown, "verl requires pyarrow>=19.0.0.", "pyarrow==21.0.0")
    if pyarrow and numpy and at_least(pyarrow, (26,)) and not at_least(numpy, (2,)):
        yield _conflict(
            shown["pyarrow"], shown["numpy"], "pip check is clean, and the import fails.", "pyarrow==21.0.0"
        )
    ray = found.get("ray")
    if ray and not at_least(ray, (2, 41)):
        yield _conflict(shown["ray"], verl_shown, "verl requires ray[default]>=2.41.0.", "ray==2.55.1")
    python, click = found.get("python"), found.get("click")
    if python and click and at_least(click, (8, 3)) and not at_least(python, (3, 11)):
        yield _conflict(shown["click"], shown["python"], "`ray start` breaks with it on Python 3.10.", "click<8.3")
    if python and not at_least(python, (3, 10)):
        yield _conflict(shown["python"], verl_shown, "verl requires Python >=3.10.", "Python 3.11")
    vllm = found.get("vllm")
    judged = vllm and "verl" in found and at_least(verl, (0, 6)) and not at_least(verl, (0, 7))
    if vllm and judged and not (at_least(vllm, (0, 8, 5)) and at_least((0, 11, 0), vllm)):
        yield _conflict(shown["vllm"], verl_shown, "verl 0.6.1 requires vllm >=0.8.5,<=0.11.0.", "vllm==0.11.0")
    if vllm and transformers and _same(vllm, (0, 11, 0)) and not at_least(transformers, (4, 55, 2)):
        yield _conflict(
            shown["vllm"], shown["transformers"], "vllm 0.11.0 requires transformers>=4.55.2.", "transformers==4.57.1"
        )
    if "pyairports" in found:
        yield CONFLICT.finding(
            "pyairports on the index is not the real package",
            why="Its name was taken over; outlines asked for it once.",
            fix="pip uninstall pyairports",
            severity="warning",
        )


def engine_and_torch(s: Settings) -> Iterator[Finding]:
    packages = s.facts.packages
    torch, vllm, npu = packages.get("torch"), packages.get("vllm"), packages.get("torch-npu")
    ascend = packages.get("vllm-ascend")
    on_ascend = bool(npu or ascend) or s.facts.platform == "npu"
    if vllm and torch and not on_ascend:
        key = ".".join(map(str, release(vllm)[:3]))
        wanted = _VLLM_TORCH.get(key)
        if wanted and not _same(release(torch), release(wanted)):
            yield _conflict(
                f"vllm {vllm}",
                f"torch {torch}",
                f"vllm {key} is built for torch {wanted}: its extension finds undefined symbols in another.",
                f"torch=={wanted}",
            )
    if torch and npu and not _same(release(torch)[:3], release(npu)[:3]):
        yield _conflict(
            f"torch-npu {npu}",
            f"torch {torch}",
            "torch-npu is built for the torch of the same release.",
            f"torch=={'.'.join(map(str, release(npu)[:3]))}",
        )
    if vllm and ascend and not _same(release(vllm), release(ascend)):
        yield _conflict(
            f"vllm-ascend {ascend}",
            f"vllm {vllm}",
            "vllm-ascend patches the vllm of the same release.",
            f"vllm=={'.'.join(map(str, release(ascend)))}",
        )
    cann = packages.get("cann")
    if npu and cann:
        key = re.sub(r"(\.post\d+).*|\+.*", r"\1", npu)
        wanted = _TORCH_NPU_CANN.get(key)
        if wanted and release(cann)[:2] != release(wanted):
            yield _conflict(
                f"torch-npu {npu}", f"CANN {cann}", f"torch-npu {key} is built for CANN {wanted}.", f"CANN {wanted}"
            )
    setuptools = packages.get("setuptools")
    if setuptools and on_ascend and at_least(release(setuptools), (80,)):
        yield _conflict(
            f"setuptools {setuptools}",
            "torchair",
            "It imports pkg_resources, which setuptools 80 drops.",
            "setuptools<80",
        )


LINTS = (verl_and_its_libraries, engine_and_torch)
