"""Doctor: whether this machine or container can run a recipe, said before anything is run.

One file a group of checks; `CHECKS` (in checks.py) lists them all. Needs nothing but pydantic, PyYAML and rich.
"""
