"""Writes verlbox/verl_keys/*.json: the config keys and defaults of one verl release, for lints that run without verl.

    python tools/make_verl_keys.py                       # the verl installed for this Python
    python tools/make_verl_keys.py --verl DIR            # an unpacked wheel (DIR holds verl/)

Needs hydra-core; verl itself is read, not imported. One file for each trainer configuration, named
`<version>-<config name>.json`:
  defaults  dotted key -> default; interpolations stay text; `???` is a value that the user must give
  fields    section -> names that its dataclass accepts although the YAML does not have them (they need a `+`)
  closed    sections that become a dataclass: a name outside `defaults` and `fields` is an error there even with a `+`
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "verlbox" / "verl_keys"
CONFIG_NAMES = ("ppo_trainer", "ppo_megatron_trainer")
# Becomes a dataclass through an explicit type, without a `_target_` that the parser could see (verl 0.6.1,
# workers/fsdp_workers.py: omega_conf_to_dataclass(self.config.model, dataclass_type=HFModelConfig)).
EXPLICIT_CLASSES = {"actor_rollout_ref.model": "HFModelConfig"}
# Have a `_target_`, but verl 0.6.1 reads them as plain dictionaries (trainer/ppo/ray_trainer.py).
NEVER_INSTANTIATED = ("algorithm", "global_profiler", "reward_model")


def installed_verl() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("verl is not installed here: install it, or give --verl DIR")
    return Path(next(iter(spec.submodule_search_locations)))


def compose(package: Path, config_name: str) -> dict[str, object]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(config_dir=str((package / "trainer" / "config").resolve()), version_base=None):
        container = OmegaConf.to_container(hydra_compose(config_name=config_name), resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def flatten(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Leaves by dotted key; an empty mapping is a leaf."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def dataclass_fields(package: Path) -> dict[str, set[str]]:
    """Class name -> annotated fields, inherited ones included, of all classes below verl's config modules."""
    own: dict[str, tuple[set[str], list[str]]] = {}
    for folder in (package / "workers" / "config", package / "trainer" / "config", package / "utils" / "profiler"):
        for path in folder.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    names = {
                        item.target.id
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    }
                    own[node.name] = (names, [base.id for base in node.bases if isinstance(base, ast.Name)])

    def with_bases(name: str) -> set[str]:
        names, bases = own.get(name, (set(), []))
        return names.union(*(with_bases(base) for base in bases))

    return {name: with_bases(name) for name in own}


def sections(node: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(section, class name) for each mapping that carries a `_target_`."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield prefix, str(node["_target_"]).rpartition(".")[2]
        for key, value in node.items():
            yield from sections(value, f"{prefix}.{key}" if prefix else str(key))


def describe(package: Path, config_name: str) -> dict[str, object]:
    config = compose(package, config_name)
    defaults = {key: value for key, value in flatten(config) if key.rpartition(".")[2] != "_target_"}
    known = dataclass_fields(package)
    classes = dict(sections(config)) | EXPLICIT_CLASSES
    present = {key.rpartition(".")[0] for key in defaults}
    names = {
        section: {k[len(section) + 1 :].split(".")[0] for k in defaults if k.startswith(section + ".")}
        for section in classes
    }
    closed = {
        s: c for s, c in classes.items() if known.get(c) and s.split(".")[0] not in NEVER_INSTANTIATED and s in present
    }
    return {
        "defaults": defaults,
        "fields": {
            s: sorted(known[c] - names[s] - {"_target_"}) for s, c in sorted(closed.items()) if known[c] - names[s]
        },
        "closed": sorted(closed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path, help="folder that holds verl/ (default: the installed package)")
    options = parser.parse_args()
    package = options.verl / "verl" if options.verl else installed_verl()
    version = (package / "version" / "version").read_text(encoding="utf-8").strip()
    for config_name in CONFIG_NAMES:
        described = {"verl": version, "config_name": config_name, **describe(package, config_name)}
        target = OUTPUT / f"{version}-{config_name}.json"
        target.write_text(json.dumps(described, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{target.name}: {len(described['defaults'])} keys")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
