"""Writes tests/export/rayjob.schema.json, a JSON Schema of RayJob, from KubeRay's custom resource definition.

usage: python tools/make_kuberay_schema.py CRD.yaml VERSION

CRD.yaml is helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml of github.com/ray-project/kuberay (Apache License 2.0)
at the tag VERSION. Kept is what a manifest is judged by: names, types, enumerations and required fields of ray.io/v1,
with unknown fields refused (the API server drops them without a word). Left out are descriptions, and parts of a pod
that verlbox's manifests do not use (LEFT_OUT), which makes a megabyte small. Equal parts are written once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parents[1] / "tests" / "export" / "rayjob.schema.json"
LEFT_OUT = frozenset(
    {
        *("affinity", "ephemeralContainers", "initContainers", "topologySpreadConstraints", "lifecycle", "dnsConfig"),
        *("hostAliases", "readinessGates", "resourceClaims", "schedulingGates", "overhead", "os", "volumeDevices"),
        *(
            "awsElasticBlockStore",
            "azureDisk",
            "azureFile",
            "cephfs",
            "cinder",
            "csi",
            "downwardAPI",
            "ephemeral",
            "fc",
        ),
        *("flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "image_volume", "iscsi", "nfs"),
        *("photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd", "scaleIO", "storageos"),
        *("vsphereVolume", "autoscalerOptions", "gcsFaultToleranceOptions", "headService", "seLinuxOptions"),
        *("windowsOptions", "grpc", "tcpSocket", "startupProbe", "status"),
    }
)
KEPT = ("type", "enum", "required", "pattern", "minimum", "maximum", "anyOf", "maxItems", "minItems")


def reduced(node: dict[str, Any]) -> dict[str, Any]:
    """A part of the definition as JSON Schema: closed objects, no prose."""
    result = {key: node[key] for key in KEPT if key in node}
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"], **({"pattern": node["pattern"]} if "pattern" in node else {})}
    if "properties" in node:
        known = {name: reduced(part) for name, part in node["properties"].items() if name not in LEFT_OUT}
        result["properties"] = known
        result["additionalProperties"] = False
    elif isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = reduced(node["additionalProperties"])
    if "items" in node:
        result["items"] = reduced(node["items"])
    return result


def shared(node: Any, seen: dict[str, int], definitions: dict[str, Any]) -> Any:
    """The schema with every part that stands in it more than once, and is not small, moved to `definitions`."""
    if isinstance(node, list):
        return [shared(part, seen, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    text = json.dumps(node, sort_keys=True)
    part = {key: shared(value, seen, definitions) for key, value in node.items()}
    if seen.get(text, 0) < 2 or len(text) < 200 or "type" not in node:
        return part
    name = f"part{sorted(t for t, n in seen.items() if n > 1).index(text)}"
    definitions[name] = part
    return {"$ref": f"#/$defs/{name}"}


def count(node: Any, seen: dict[str, int]) -> None:
    if isinstance(node, dict):
        text = json.dumps(node, sort_keys=True)
        seen[text] = seen.get(text, 0) + 1
        for part in node.values():
            count(part, seen)
    elif isinstance(node, list):
        for part in node:
            count(part, seen)


def main(source: str, version: str) -> None:
    crd = yaml.safe_load(Path(source).read_text(encoding="utf-8"))
    found = next(v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema = reduced(found["schema"]["openAPIV3Schema"])
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    seen: dict[str, int] = {}
    count(schema, seen)
    definitions: dict[str, Any] = {}
    body = shared(schema, seen, definitions)
    body["properties"]["apiVersion"] = {"const": "ray.io/v1"}
    body["properties"]["kind"] = {"const": "RayJob"}
    body["properties"]["metadata"] = {"type": "object"}
    result = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"Derived by tools/make_kuberay_schema.py from helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml"
        f" of github.com/ray-project/kuberay {version}, Apache License 2.0: descriptions and unused parts removed,"
        " unknown fields refused.",
        **body,
        "$defs": dict(sorted(definitions.items())),
    }
    TARGET.write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
