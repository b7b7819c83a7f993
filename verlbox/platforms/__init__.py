"""What verlbox sees of a kind of device, and the rollout engine of the CPU."""

from pathlib import Path

from verlbox import findings

ABSENT = findings.register("platform-absent", "error", "The accelerator that the recipe needs is not there.")


def on_the_bus(vendor: str, device_class: str, root: Path = Path("/")) -> int:
    """How many cards of a PCI vendor and class (its first digits) the bus lists, with or without a driver for them."""

    def read(path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError:
            return ""

    cards = (root / "sys/bus/pci/devices").glob("*")
    return sum(read(c / "vendor") == vendor and read(c / "class").startswith(device_class) for c in cards)
