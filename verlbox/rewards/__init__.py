"""Rewards verl loads: grading of untrusted model output. Nothing here imports torch, Ray or verl."""
