"""A server on this machine that speaks the parts of the hubs' protocols which their own clients use, with faults.

One server is a Hugging Face hub and a ModelScope at once. Files are kept in memory. A fault matches a path (a regular
expression on `METHOD /path`), acts so many times, and then lets requests through.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "Owner/Tiny-1.5B"

Action = Literal["status", "truncate", "garble", "hang", "redirect", "slow"]


def safetensors(tensors: dict[str, int]) -> bytes:
    """A safetensors file with U8 tensors of so many bytes."""
    header: dict[str, object] = {}
    offset = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + (bytes(range(251)) * (offset // 251 + 1))[:offset]


def tiny_model(second_shard: int = 30_000) -> dict[str, bytes]:
    """The files of a model in two shards, small but complete; and some that nobody needs."""
    weight_map = {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}
    index = {"metadata": {"total_size": 20_000 + second_shard}, "weight_map": weight_map}
    return {
        "config.json": b'{"model_type": "qwen2"}',
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b'{"chat_template": "x"}',
        "model-00001.safetensors": safetensors({"a": 20_000}),
        "model-00002.safetensors": safetensors({"b": second_shard}),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "pytorch_model.bin": b"pickle" * 100,
        "onnx/model.onnx": b"onnx" * 100,
        ".gitattributes": b"*.bin filter=lfs",
    }


def tiny_dataset() -> dict[str, bytes]:
    row = b'{"question": "1+1?", "answer": "#### 2"}\n'
    return {"main/train.jsonl": row * 5, "main/test.jsonl": row, "socratic/train.jsonl": row, "plot.png": b"x"}


@dataclass
class Fault:
    pattern: str
    action: Action
    times: int = 10**6
    value: Any = 503


@dataclass
class Hub:
    """The server's state: files of its repository, faults, and every request it got (with its headers)."""

    files: dict[str, bytes]
    url: str = ""
    name: str = NAME
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    hashed: bool = True
    listed_size: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line, _ in self.requests)

    def due(self, line: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, line):
                    fault.times -= 1
                    return fault
        return None


@contextlib.contextmanager
def serving(files: dict[str, bytes], **settings: Any) -> Iterator[Hub]:
    hub = Hub(files, **settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        line = f"{self.command} {self.path}"
        self.hub.requests.append((line, dict(self.headers.items())))
        fault = self.hub.due(line)
        if fault and fault.action == "status":
            self._json({"error": "fault", "Code": fault.value, "Message": "fault", "RequestId": "1"}, fault.value)
            return
        if fault and fault.action == "hang":
            time.sleep(fault.value)
            self.close_connection = True
            return
        if fault and fault.action == "redirect":
            self.send_response(302)
            self.send_header("Location", fault.value + self.path)
            data = self.hub.files[self.path.rpartition("/")[2]]  # as Hugging Face does for a file that lies elsewhere
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._route(fault)

    def _route(self, fault: Fault | None) -> None:
        hub, url = self.hub, urlparse(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        if re.fullmatch(rf"/api/(models|datasets)/{hub.name}(/revision/[^/]+)?", path):
            self._hugging_face_info()
        elif match := re.fullmatch(rf"(?:/datasets)?/{hub.name}/resolve/[^/]+/(.+)", path):
            self._file(match[1], fault)
        elif path == f"/api/v1/models/{hub.name}/revisions":
            branch = {"Revision": "master", "CreatedAt": 1}
            self._json({"Code": 200, "Data": {"RevisionMap": {"Branches": [branch], "Tags": []}}})
        elif path in (f"/api/v1/models/{hub.name}/repo/files", "/api/v1/datasets/77/repo/tree"):
            self._json({"Code": 200, "Data": {"Files": self._modelscope_files()}})
        elif path == f"/api/v1/datasets/{hub.name}":
            self._json({"Code": 200, "Data": {"Id": 77, "Type": 1}})
        elif path in (f"/api/v1/models/{hub.name}/repo", f"/api/v1/datasets/{hub.name}/repo"):
            self._file(query["FilePath"][0], fault)
        else:
            self._json({"error": "not found", "Code": 404, "Message": "not found", "RequestId": "1"}, 404)

    def _hugging_face_info(self) -> None:
        siblings = []
        for name, data in self.hub.files.items():
            size = self.hub.listed_size.get(name, len(data))
            entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": _git_sha1(data)}
            if name.endswith((".safetensors", ".bin")) and self.hub.hashed:
                entry["lfs"] = {"size": size, "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
            elif not self.hub.hashed:
                del entry["blobId"]
            siblings.append(entry)
        self._json(
            {"id": self.hub.name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
        )

    def _modelscope_files(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = [{"Name": "onnx", "Path": "onnx", "Type": "tree", "Size": 0, "Revision": "r"}]
        for name, data in self.hub.files.items():
            entry = {"Name": name.rpartition("/")[2], "Path": name, "Type": "blob", "Revision": "r1"}
            sha256 = {"Sha256": hashlib.sha256(data).hexdigest()} if self.hub.hashed else {}
            listed.append({**entry, "Size": self.hub.listed_size.get(name, len(data)), **sha256})
        return listed

    def _file(self, name: str, fault: Fault | None) -> None:
        data = self.hub.files.get(name)
        if data is None:
            self._json({"error": "no such file"}, 404)
            return
        etag = hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else _git_sha1(data)
        start = 0
        if match := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(match[1])
        body = data[start:]
        self.send_response(206 if start or "Range" in self.headers else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{etag}"')
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and fault.action == "garble":
            body = bytes(byte ^ 0xFF for byte in body)
        if fault and fault.action == "truncate":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        if fault and fault.action == "slow":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            time.sleep(fault.value)
            body = body[len(body) // 2 :]
        self.wfile.write(body)

    def _json(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
