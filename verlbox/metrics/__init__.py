"""What a training run measured: reading it, judging it, drawing it."""
