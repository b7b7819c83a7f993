"""Diagnosis: what went wrong, told from a log, live or afterwards; and health while training."""
