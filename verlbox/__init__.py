"""verlbox: reproducible recipes for RL post-training with verl, on Ascend NPUs, NVIDIA GPUs and plain CPUs."""

__version__ = "0.1.0"
