"""Everything that a GPU machine without a network needs to run a CUDA recipe, in pieces that can be carried.

    python benchmarks/gpu/prepare.py OUT --have have.txt --tokenizer FOLDER --gsm8k FOLDER [--piece 55]

Wheels come from the project's own pins (requirements-cuda.txt), for Python 3.12 on x86_64. `have.txt` lists what the
machine's own Python holds (`python3 -m pip list --format=freeze` there; a name without a version stands for any): what
it has in the pinned version is left out. flash-attn comes as source, cut down to what Qwen2.5 on Hopper needs, since
the whole build takes hours of processor time; install.sh builds it there once.

Result: OUT/pieces/NN/part, a tar archive in pieces of at most `--piece` MB, for install.sh on the other machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements-cuda.txt"
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", re.MULTILINE)
FLASH_ATTN = "2.8.3"
HEAD_SIZES = (32, 64, 128)  # the bundled model, Qwen2.5-0.5B, Qwen2.5-1.5B

# The other machine's torch, with the CUDA libraries that belong to it, stays; its version is checked by install.sh.
TORCH = re.compile(r"torch|torchvision|torchaudio|torchcodec|triton|nvidia-.*|cuda-.*")
# Hundreds of megabytes that neither verl's training nor vLLM's Qwen2 imports (tried: they run without).
UNUSED = re.compile(r"flashinfer-.*|tokenspeed-.*|tilelang|quack-kernels|cupy-.*|av|wandb|z3-solver|opencv-.*")
# The tags of manylinux that wheels of the pins carry; pip takes each literally.
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
]


def wanted(have: dict[str, str]) -> list[str]:
    """The pins to carry, as NAME==VERSION. `have` maps normalised names to versions, or to "" for any version."""
    chosen = []
    for name, version in PIN.findall(PINS.read_text(encoding="utf-8")):
        normal = normalised(name)
        if TORCH.fullmatch(normal) or UNUSED.fullmatch(normal) or have.get(normal) in ("", version):
            continue
        chosen.append(f"{name}=={version}")
    return chosen


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_have(path: Path | None) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").split() if path else []
    pairs = (line.partition("==") for line in lines)
    return {normalised(name): version for name, _, version in pairs}


def download(pins: list[str], folder: Path) -> None:
    """Fetches the wheels that are not there yet; builds those of pure Python that are published as source only."""
    folder.mkdir(parents=True, exist_ok=True)
    tags = [part for platform in PLATFORMS for part in ("--platform", platform)]
    base = [sys.executable, "-m", "pip", "--quiet"]
    for pin in pins:
        name, _, version = pin.partition("==")
        if any(normalised(wheel.name.split("-")[0]) == normalised(name) for wheel in folder.glob(f"*-{version}-*")):
            continue
        options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *tags]
        fetched = subprocess.run([*base, "download", *options, "-d", str(folder), pin], check=False)
        if fetched.returncode != 0:
            subprocess.run([*base, "wheel", "--no-deps", "-w", str(folder), pin], check=True)


def slim_flash_attn(archive: Path, folder: Path) -> None:
    """Unpacks flash-attn's source and leaves bfloat16, three head sizes, no dropout, ALiBi, softcap nor window.

    What is left out raises an error when it is asked for (head sizes, float16), or cannot be asked for by Qwen2.
    """
    with tarfile.open(archive) as source:
        members = [member for member in source.getmembers() if "composable_kernel" not in member.name]
        source.extractall(folder, members=members, filter="data")
    root = next(folder.glob("flash_attn-*"))
    setup = root / "setup.py"
    text = setup.read_text(encoding="utf-8")
    sizes = "|".join(map(str, HEAD_SIZES))
    text = re.sub(rf'\n *"csrc/flash_attn/src/(?!\w+hdim(?:{sizes})_bf16)\w+\.cu",', "", text)
    for unused in ("DROPOUT", "ALIBI", "SOFTCAP", "LOCAL"):
        text = text.replace(f'# "-DFLASHATTENTION_DISABLE_{unused}"', f'"-DFLASHATTENTION_DISABLE_{unused}"')
    setup.write_text(text, encoding="utf-8")
    branches = " else ".join(
        f"if (HEADDIM <= {size}) {{ constexpr static int kHeadDim = {size}; return __VA_ARGS__(); }}"
        for size in HEAD_SIZES
    )
    header = root / "csrc/flash_attn/src/static_switch.h"
    text = header.read_text(encoding="utf-8").partition("#define FP16_SWITCH")[0]
    header.write_text(
        text
        + "#include <stdexcept>\n"
        + "#define FP16_SWITCH(COND, ...) [&] { \\\n"
        + '  if (COND) throw std::runtime_error("this build of flash-attn is for bfloat16 only"); \\\n'
        + "  using elem_type = cutlass::bfloat16_t; return __VA_ARGS__(); }()\n"
        + f"#define HEADDIM_SWITCH(HEADDIM, ...) [&] {{ {branches} \\\n"
        + '  throw std::runtime_error("this build of flash-attn lacks the head size"); }()\n',
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--have", type=Path, help="pip list --format=freeze of the other machine's Python")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with Qwen2.5's tokenizer")
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder with GSM8K (train and test)")
    parser.add_argument("--math", type=Path, help="folder with MATH-lighteval (train and test)")
    parser.add_argument("--flash-attn", type=Path, help="a wheel that an earlier run has built, in place of the source")
    parser.add_argument("--piece", type=int, default=55, help="MB a piece")
    arguments = parser.parse_args()
    out: Path = arguments.out
    content = out / "content"
    pins = wanted(read_have(arguments.have))
    download(pins, out / "wheels")
    shutil.rmtree(content, ignore_errors=True)
    for name in ("tokenizer", "gsm8k", "math"):
        if getattr(arguments, name) is not None:
            shutil.copytree(getattr(arguments, name), content / name)
    (content / "wheels").mkdir(parents=True)
    for pin in pins:
        name, _, version = pin.partition("==")
        for wheel in (out / "wheels").glob(f"*-{version}-*.whl"):
            if normalised(wheel.name.split("-")[0]) == normalised(name):
                os.link(wheel, content / "wheels" / wheel.name)
    if arguments.flash_attn:
        shutil.copy(arguments.flash_attn, content / "wheels")
    else:
        archive = out / f"flash_attn-{FLASH_ATTN}.tar.gz"
        if not archive.is_file():
            raise SystemExit(f"{archive} is missing: take the source distribution from the package index")
        slim_flash_attn(archive, content / "flash-attn")
    pack(content, out / "pieces", arguments.piece * 1_000_000)


def pack(content: Path, pieces: Path, size: int) -> None:
    """One tar archive in pieces, the source that has to be built first, so that its build starts with the first."""
    shutil.rmtree(pieces, ignore_errors=True)
    entries = sorted(content.iterdir(), key=lambda path: (path.name == "wheels", path.name))
    first, rest = content.parent / "first.tar.gz", content.parent / "rest.tar"
    with tarfile.open(first, "w:gz") as archive:
        for entry in entries:
            if entry.name != "wheels":
                archive.add(entry, entry.name)
    with tarfile.open(rest, "w") as archive:
        archive.add(content / "wheels", "wheels")
    (pieces / "00").mkdir(parents=True)
    shutil.move(first, pieces / "00" / "first.tar.gz")
    with rest.open("rb") as stream:
        number = 1
        while block := stream.read(size):
            (pieces / f"{number:02}").mkdir()
            (pieces / f"{number:02}" / "part").write_bytes(block)
            number += 1
    rest.unlink()
    print(f"{number} pieces in {pieces}")


if __name__ == "__main__":
    main()
