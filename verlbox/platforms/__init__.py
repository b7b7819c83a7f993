"""What verlbox sees of a kind of device, and the rollout engine of the CPU."""

from verlbox import findings

ABSENT = findings.register("platform-absent", "error", "The accelerator that the recipe needs is not there.")
