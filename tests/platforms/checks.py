"""Runs a module's checks where there is no pytest: each is a function check_*, and a failed one ends the script."""

from __future__ import annotations

from collections.abc import Mapping


def run(module: Mapping[str, object]) -> None:
    """`module` is its globals()."""
    checks = {name: check for name, check in module.items() if name.startswith("check_") and callable(check)}
    for name, check in checks.items():
        check()
        print(name.removeprefix("check_").replace("_", " "), flush=True)
    print(f"{len(checks)} checks passed")
