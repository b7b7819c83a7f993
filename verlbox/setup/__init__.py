"""Environments without Docker: the commands that install a stack, and the verb `setup` that runs them."""
