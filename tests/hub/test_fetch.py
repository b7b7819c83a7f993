"""The real clients against a hub on this machine, with the faults that real hubs and networks have."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.fake_hub import COMMIT, NAME, Fault, Hub, serving, tiny_dataset, tiny_model
from verlbox.findings import FindingsError
from verlbox.hub import DatasetSpec, Fetched, ModelSpec, Patience, Progress, Source, fetch_dataset, fetch_model
from verlbox.hub.client import endpoints, environment, redacted

ROOT = Path(__file__).parents[2]
QUICK = Patience(attempts=3, first_wait_seconds=0.05, stall_seconds=4, listing_seconds=20)
CANARY = "hf_canary0123456789abcdefSECRET"
BOTH = pytest.mark.parametrize("source", ["modelscope", "huggingface"])
# Downloads of one file, by either hub.
WEIGHTS = r"^GET .*(resolve/.*|FilePath=)model-00002"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MODELSCOPE_API_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(tiny_model()) as running:
        yield running


@pytest.fixture
def large_hub() -> Iterator[Hub]:
    """A shard of several of the clients' chunks (10 MB and 1 MB), so that a part of it can have arrived."""
    with serving(tiny_model(25_000_000)) as running:
        yield running


def _at(url: str) -> dict[Source, str]:
    return {"modelscope": url, "huggingface": url, "mirror": url}


def _dead() -> str:
    """An address that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def _fetch(hub: Hub, cache: Path, source: Source, revision: str | None = None) -> Fetched:
    return fetch_model(ModelSpec(NAME, (source,), revision), cache, endpoints=_at(hub.url), patience=QUICK)


def _codes(error: pytest.ExceptionInfo[FindingsError]) -> list[str]:
    return [finding.code for finding in error.value.findings]


def _content(fetched: Fetched) -> dict[str, bytes]:
    return {path: (fetched.path / path).read_bytes() for path in fetched.sha256}


def wanted(hub: Hub) -> dict[str, bytes]:
    return {name: data for name, data in hub.files.items() if not re.search(r"\.bin$|onnx|\.git", name)}


NEEDED = wanted(Hub(tiny_model()))


@BOTH
def test_a_model_arrives_whole_and_the_second_run_downloads_nothing(hub: Hub, tmp_path: Path, source: Source) -> None:
    seen: list[Progress] = []
    spec = ModelSpec(NAME, (source,))
    first = fetch_model(spec, tmp_path, endpoints=_at(hub.url), patience=QUICK, progress=seen.append)
    assert _content(first) == NEEDED
    assert {path.name for path in first.path.iterdir()} == {*NEEDED, ".verlbox-files.json"}
    assert {path.name for path in first.path.parent.iterdir()} == {first.path.name, ".lock"}
    assert (first.from_cache, first.findings) == (False, ())
    assert seen[-1] == Progress(source, NAME, first.bytes, first.bytes)
    downloads = hub.count(WEIGHTS)
    second = fetch_model(spec, tmp_path, endpoints=_at(hub.url), patience=QUICK)
    assert (second.path, second.digest, second.from_cache) == (first.path, first.digest, True)
    assert hub.count(WEIGHTS) == downloads == 1


def test_equal_content_has_one_digest_whatever_the_hub(hub: Hub, tmp_path: Path) -> None:
    digests = {_fetch(hub, tmp_path / source, source).digest for source in ("modelscope", "huggingface")}
    assert len(digests) == 1


@BOTH
def test_a_data_set_arrives_with_its_data_files_only(tmp_path: Path, source: Source) -> None:
    with serving(tiny_dataset()) as hub:
        spec = DatasetSpec(NAME, (source,))
        fetched = fetch_dataset(spec, tmp_path, endpoints=_at(hub.url), patience=QUICK)
    assert set(fetched.sha256) == {"main/train.jsonl", "main/test.jsonl", "socratic/train.jsonl"}


def test_a_data_set_is_asked_for_by_the_name_that_modelscope_has_for_it(tmp_path: Path) -> None:
    with serving(tiny_dataset(), name="modelscope/gsm8k") as hub:
        spec = DatasetSpec("openai/gsm8k", ("modelscope",))
        fetched = fetch_dataset(spec, tmp_path, endpoints=_at(hub.url), patience=QUICK)
    assert fetched.path.parent.name == "openai--gsm8k"


def test_a_data_set_without_its_splits_is_passed_over(tmp_path: Path) -> None:
    script_only = {"README.md": b"run the script", "gsm8k.py": b"", "dataset_infos.json": b"{}"}
    with serving(script_only) as script, serving(tiny_dataset()) as whole:
        places: dict[Source, str] = {"modelscope": script.url, "huggingface": whole.url, "mirror": whole.url}
        fetched = fetch_dataset(DatasetSpec(NAME), tmp_path, endpoints=places, patience=QUICK)
    assert fetched.source == "huggingface"
    assert "has no train split" in fetched.findings[0].what


def test_a_pinned_revision_that_is_here_asks_no_hub(hub: Hub, tmp_path: Path) -> None:
    _fetch(hub, tmp_path, "huggingface", COMMIT)
    before = len(hub.requests)
    again = _fetch(hub, tmp_path, "huggingface", COMMIT[:12])
    assert (again.revision, again.from_cache, len(hub.requests)) == (COMMIT, True, before)


@BOTH
@pytest.mark.parametrize("pattern", [r"GET /api/", WEIGHTS])
def test_503_then_success_is_success(hub: Hub, tmp_path: Path, source: Source, pattern: str) -> None:
    hub.faults = [Fault(pattern, "status", times=1, value=503)]
    assert _content(_fetch(hub, tmp_path, source)) == NEEDED


@BOTH
def test_a_cut_body_is_gone_on_with_where_it_stopped(large_hub: Hub, tmp_path: Path, source: Source) -> None:
    hub = large_hub
    hub.faults = [Fault(WEIGHTS, "truncate", times=1)]
    assert _content(_fetch(hub, tmp_path, source)) == wanted(hub)
    ranges = [headers.get("Range", "") for line, headers in hub.requests if re.search(WEIGHTS, line)]
    assert len(ranges) >= 2
    assert re.fullmatch(r"bytes=[1-9]\d+-\d*", ranges[-1])


@BOTH
def test_wrong_bytes_of_the_right_length_are_never_used(hub: Hub, tmp_path: Path, source: Source) -> None:
    hub.faults = [Fault(WEIGHTS, "garble")]
    with pytest.raises(FindingsError) as error:
        _fetch(hub, tmp_path, source)
    assert set(_codes(error)) <= {"hub-damaged", "hub-unreachable"}
    assert error.value.exit_code == 4
    assert not [p for p in (tmp_path / "models").glob("*/*") if not p.name.startswith(".")]
    hub.faults = []
    assert _content(_fetch(hub, tmp_path, source)) == NEEDED


def test_a_small_file_that_came_wrong_is_caught_by_its_git_hash_and_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(r"GET .*resolve/.*/tokenizer.json", "garble", times=1)]
    assert _content(_fetch(hub, tmp_path, "huggingface")) == NEEDED
    assert hub.count(r"GET .*resolve/.*/tokenizer.json") == 2


@BOTH
@pytest.mark.parametrize(("status", "code"), [(401, "hub-denied"), (403, "hub-denied"), (404, "hub-not-found")])
def test_what_cannot_recover_is_asked_once(hub: Hub, tmp_path: Path, source: Source, status: int, code: str) -> None:
    hub.faults = [Fault(r"GET /api/", "status", value=status)]
    with pytest.raises(FindingsError) as error:
        _fetch(hub, tmp_path, source)
    assert _codes(error) == [code]
    assert len(hub.requests) == 1
    if code == "hub-denied":
        assert "TOKEN" in error.value.findings[0].fix


@BOTH
def test_a_file_that_is_refused_is_not_asked_for_again_and_again(hub: Hub, tmp_path: Path, source: Source) -> None:
    hub.faults = [Fault(WEIGHTS.replace("GET", "(GET|HEAD)"), "status", value=403)]
    with pytest.raises(FindingsError) as error:
        _fetch(hub, tmp_path, source)
    assert _codes(error) == ["hub-denied"]
    assert hub.count(WEIGHTS.replace("GET", "(GET|HEAD)")) <= 4


def test_a_hub_that_hangs_is_given_up_in_time(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(r"GET /api/", "hang", value=60)]
    start = time.monotonic()
    patience = Patience(attempts=2, first_wait_seconds=0.05, stall_seconds=2, listing_seconds=3)
    with pytest.raises(FindingsError) as error:
        fetch_model(ModelSpec(NAME, ("huggingface",)), tmp_path, endpoints=_at(hub.url), patience=patience)
    assert _codes(error) == ["hub-unreachable"]
    assert time.monotonic() - start < 15


@BOTH
def test_a_download_that_stalls_is_stopped_and_gone_on_with(hub: Hub, tmp_path: Path, source: Source) -> None:
    hub.faults = [Fault(WEIGHTS, "slow", times=1, value=60)]
    patience = Patience(attempts=3, first_wait_seconds=0.05, stall_seconds=2, listing_seconds=20)
    fetched = fetch_model(ModelSpec(NAME, (source,)), tmp_path, endpoints=_at(hub.url), patience=patience)
    assert _content(fetched) == NEEDED


def test_a_dead_first_source_is_passed_over_and_reported(hub: Hub, tmp_path: Path) -> None:
    places: dict[Source, str] = {"modelscope": _dead(), "huggingface": _dead(), "mirror": hub.url}
    fetched = fetch_model(ModelSpec(NAME), tmp_path, endpoints=places, patience=QUICK)
    assert (fetched.source, _content(fetched)) == ("mirror", NEEDED)
    assert [(f.severity, f.code) for f in fetched.findings] == [("warning", "hub-source-failed")] * 2
    assert "modelscope" in fetched.findings[0].what


def test_every_source_says_what_it_said_when_none_delivers(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault("GET /api/v1/", "status", value=404), Fault("GET /api/models", "status", value=401)]
    places: dict[Source, str] = {"modelscope": hub.url, "huggingface": hub.url + "/", "mirror": _dead()}
    with pytest.raises(FindingsError) as error:
        fetch_model(ModelSpec(NAME, ("modelscope", "mirror")), tmp_path, endpoints=places, patience=QUICK)
    assert _codes(error) == ["hub-not-found", "hub-unreachable"]


def test_no_answer_falls_back_to_the_cached_revision_with_a_warning(hub: Hub, tmp_path: Path) -> None:
    first = _fetch(hub, tmp_path, "huggingface")
    again = fetch_model(ModelSpec(NAME, ("huggingface",)), tmp_path, endpoints=_at(_dead()), patience=QUICK)
    assert (again.path, [f.code for f in again.findings]) == (first.path, ["hub-not-asked"])


def test_a_mirror_that_redirects_delivers_and_shows_the_token_to_nobody_else(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tiny_model()) as store:
        hub.faults = [
            Fault(r"^(GET|HEAD) /Owner.*safetensors$", "redirect", value=store.url.replace("127.0.0.1", "localhost"))
        ]
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setenv("HF_TOKEN", CANARY)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        fetched = fetch_model(ModelSpec(NAME, ("mirror",)), tmp_path, patience=QUICK)
        assert _content(fetched) == NEEDED
        assert store.count("^GET .*safetensors") == 2
        assert CANARY in str(hub.requests)
        assert CANARY not in str(store.requests)


@BOTH
def test_a_killed_download_leaves_no_process_and_is_gone_on_with(
    large_hub: Hub, tmp_path: Path, source: Source
) -> None:
    hub = large_hub
    hub.faults = [Fault(WEIGHTS, "slow", times=1, value=3)]
    code = (
        "import sys; from pathlib import Path; from verlbox.hub import *\n"
        f"e = {{s: {hub.url!r} for s in DEFAULT_SOURCES}}\n"
        f"fetch_model(ModelSpec({NAME!r}, ({source!r},)), Path({str(tmp_path)!r}), endpoints=e)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    deadline = time.monotonic() + 30
    while not hub.count(WEIGHTS) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(FindingsError) as error:
        fetch_model(ModelSpec(NAME, (source,)), tmp_path, offline=True)
    assert "unfinished" in error.value.findings[0].what
    assert "model-00002.safetensors" in error.value.findings[0].what
    time.sleep(1)
    assert not _workers_of(tmp_path)
    before = len(hub.requests)
    assert _content(_fetch(hub, tmp_path, source)) == wanted(hub)
    later = [(line, headers) for line, headers in hub.requests[before:] if re.search(WEIGHTS, line)]
    assert re.fullmatch(r"bytes=[1-9]\d+-\d*", later[0][1].get("Range", ""))
    assert not hub.count(r"config\.json") > 4  # HEAD and GET of two files named so, once


def _workers_of(cache: Path) -> list[str]:
    """Worker processes that have a file of the cache open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(descriptor) for descriptor in (process / "fd").iterdir()]  # noqa: PTH115
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"verlbox.hub.worker" in command and any(str(cache) in file for file in files):
            found.append(str(process))
    return found


def test_two_runs_at_once_download_each_file_once(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(WEIGHTS, "slow", times=1, value=1)]
    code = (
        "from pathlib import Path; from verlbox.hub import *\n"
        f"e = {{s: {hub.url!r} for s in DEFAULT_SOURCES}}\n"
        f"print(fetch_model(ModelSpec({NAME!r}, ('huggingface',)), Path({str(tmp_path)!r}), endpoints=e).digest)"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    assert hub.count(WEIGHTS) == 1


def test_offline_takes_what_is_here_and_names_what_is_not(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FindingsError) as error:
        fetch_model(ModelSpec(NAME), tmp_path, offline=True)
    assert _codes(error) == ["hub-offline"]
    assert NAME in error.value.findings[0].what
    first = _fetch(hub, tmp_path, "huggingface")
    before = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_model(ModelSpec(NAME), tmp_path).path == first.path
    with pytest.raises(FindingsError, match="at revision v2"):
        fetch_model(ModelSpec(NAME, revision="v2"), tmp_path)
    (first.path / "tokenizer.json").write_text("{}")
    with pytest.raises(FindingsError, match=r"tokenizer\.json has"):
        fetch_model(ModelSpec(NAME), tmp_path)
    assert len(hub.requests) == before


@BOTH
def test_a_disk_without_room_is_told_before_a_byte_is_fetched(hub: Hub, tmp_path: Path, source: Source) -> None:
    hub.listed_size = {"model-00001.safetensors": 10**15}
    with pytest.raises(FindingsError) as error:
        _fetch(hub, tmp_path, source)
    assert _codes(error) == ["hub-disk-full"]
    assert hub.count(r"(resolve|FilePath)") == 0


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("revision", [COMMIT, None])
def test_a_file_that_changed_in_the_cache_is_fetched_again(
    hub: Hub, tmp_path: Path, hashed: bool, revision: str | None
) -> None:
    hub.hashed = hashed
    first = _fetch(hub, tmp_path, "huggingface", revision)
    victim = first.path / "model-00002.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    again = _fetch(hub, tmp_path, "huggingface", revision)
    assert (_content(again), again.digest) == (NEEDED, first.digest)
    assert [f.code for f in again.findings] == ["hub-cache-damaged"]
    assert hub.count(WEIGHTS) == 2
    assert hub.count(r"^GET .*/tokenizer_config.json") == 1


def test_a_repository_whose_weights_are_incomplete_is_refused(tmp_path: Path) -> None:
    files = tiny_model()
    del files["model-00002.safetensors"]
    with serving(files) as hub, pytest.raises(FindingsError) as error:
        _fetch(hub, tmp_path, "huggingface")
    assert _codes(error) == ["hub-unusable"]
    assert "model-00002.safetensors is missing" in error.value.findings[0].what


def test_a_listing_that_points_outside_the_cache_is_refused(tmp_path: Path) -> None:
    with serving({"../../escape.json": b"{}", **tiny_dataset()}) as hub, pytest.raises(FindingsError) as error:
        fetch_dataset(DatasetSpec(NAME, ("huggingface",)), tmp_path, endpoints=_at(hub.url), patience=QUICK)
    assert "outside the repository" in error.value.findings[0].what


def test_the_token_is_in_no_file_no_output_and_no_finding(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-" + CANARY)
    said = ""
    once = Patience(attempts=1)
    faults: tuple[tuple[Source, Fault], ...] = (
        ("huggingface", Fault("GET /api/", "status", value=401)),
        ("huggingface", Fault("GET /api/", "status", value=503)),
        ("modelscope", Fault("GET /api/", "status", value=403)),
        ("modelscope", Fault(WEIGHTS, "status", value=503)),
    )
    for source, fault in faults:
        hub.faults = [fault]
        with pytest.raises(FindingsError) as error:
            fetch_model(ModelSpec(NAME, (source,)), tmp_path, endpoints=_at(hub.url), patience=once)
        said += str(error.value) + str(error.value.findings)
    hub.faults = []
    said += str(_fetch(hub, tmp_path, "huggingface")) + str(_fetch(hub, tmp_path / "2", "modelscope"))
    assert CANARY in str(hub.requests)  # it was used
    said += "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert CANARY.encode() not in path.read_bytes(), path
    assert CANARY not in said


def test_each_source_sees_its_own_token_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms")
    places = endpoints()
    assert "HF_TOKEN" not in environment("modelscope", places["modelscope"], tmp_path)
    assert environment("modelscope", places["modelscope"], tmp_path)["MODELSCOPE_API_TOKEN"] == "ms"
    assert environment("huggingface", places["huggingface"], tmp_path)["HF_TOKEN"] == CANARY
    assert "HF_TOKEN" not in environment("mirror", "https://hf-mirror.com", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.company.example/")
    assert environment("mirror", "https://hub.company.example", tmp_path)["HF_TOKEN"] == CANARY


def test_xet_is_off_everywhere_but_at_hugging_face_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "0")
    assert environment("mirror", endpoints()["mirror"], tmp_path)["HF_HUB_DISABLE_XET"] == "1"
    assert environment("huggingface", endpoints()["huggingface"], tmp_path)["HF_HUB_DISABLE_XET"] == "0"
    monkeypatch.setenv("HF_ENDPOINT", "https://hf-mirror.com")
    assert environment("huggingface", endpoints()["huggingface"], tmp_path)["HF_HUB_DISABLE_XET"] == "1"


def test_signatures_and_passwords_in_addresses_are_hidden() -> None:
    text = redacted("GET https://user:pass@host/x?X-Amz-Signature=abc&y=1 failed")
    assert text == "GET https://[hidden]@host/x?[hidden] failed"


def test_the_record_says_how_each_file_was_checked(hub: Hub, tmp_path: Path) -> None:
    fetched = _fetch(hub, tmp_path, "huggingface")
    record = json.loads((fetched.path / ".verlbox-files.json").read_text())
    assert record["revision"] == COMMIT
    checks = {path: entry["checked"] for path, entry in record["files"].items()}
    assert checks["model-00001.safetensors"] == "sha256 of the hub"
    assert checks["config.json"] == "git hash of the hub"
