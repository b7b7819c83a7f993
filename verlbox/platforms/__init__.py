"""What verlbox sees of a kind of device, and the rollout engine of the CPU."""
