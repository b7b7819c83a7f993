"""docs/doctor.md and docs/pins.md say what the data says."""

from __future__ import annotations

from pathlib import Path

from verlbox import pins
from verlbox.doctor import checks, matrix
from verlbox.stacks import STACKS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_row_of_the_matrix_is_documented_with_its_source() -> None:
    text = (DOCS / "doctor.md").read_text()
    data = matrix.load()
    for platform, rows in data.combinations.items():
        for row in rows:
            versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
            assert f"| {platform} | {versions} | {row.standing} | {row.source} |" in text
    for release, canns in data.torch_npu_cann.pairs.items():
        assert f"| {release} | {', '.join(canns)} |" in text
    for cann in data.cann_drivers:
        assert f"| {cann.cann} | {', '.join(cann.drivers)} | {cann.source} |" in text
    for cuda in data.cuda_drivers:
        assert f"| {cuda.stack} | {cuda.cuda} | {cuda.oldest} | {cuda.toolkit} | {cuda.source} |" in text


def test_every_group_of_checks_is_documented() -> None:
    text = (DOCS / "doctor.md").read_text()
    for group in {check.group for check in checks.CHECKS}:
        assert f"| {group} |" in text


def test_every_stack_and_accepted_conflict_is_documented() -> None:
    text = (DOCS / "pins.md").read_text()
    for stack in STACKS.values():
        assert f"| {stack.name} | {stack.python}" in text
        assert stack.requirements in text
        for entry in pins.load()[stack.name].conflicts:
            assert f"| {stack.name} | {entry.requirer.replace('==', ' ')} | {entry.requirement} |" in text
