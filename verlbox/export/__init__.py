"""Files with which other systems run a recipe or repeat a run's evaluation: KubeRay, Slurm, OpenCompass."""
