"""Machines as their device files and kernel tables look: what discovery reads, written into a folder."""

from __future__ import annotations

from pathlib import Path


def add_devices(root: Path, *names: str) -> None:
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def add_card(root: Path, slot: str, vendor: str, kind: str) -> None:
    """A PCI device: `lspci -n` shows vendor and class; the kernel writes them with a line break."""
    card = root / "sys/bus/pci/devices" / slot
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "class").write_text(f"{kind}\n")
