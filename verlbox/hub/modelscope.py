"""ModelScope, by its own client. Runs in the worker process only (see worker.py)."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verlbox.hub.spec import HubFile, Listing, Repository
from verlbox.hub.trouble import Failure, Trouble, by_status

DEFAULT_DOMAIN = "www.modelscope.cn"
PAGE = 200


def environment() -> dict[str, str]:
    """What the client reads from its environment when it is imported."""
    return {
        "API_HTTP_CLIENT_MAX_RETRIES": "1",  # the number of attempts is decided by the parent process
        "MODELSCOPE_LOG_LEVEL": "40",
    }


def load() -> None:
    """Imports the client, without torch: it would import it (and torch_npu with it) only to leave it unused."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it now raises ImportError
    import modelscope.hub.api
    import modelscope.hub.snapshot_download  # noqa: F401


def list_files(repository: Repository) -> Listing:
    """The revision and the files of a repository. Raises Trouble.

    ModelScope knows branches and tags, not commits: the revision returned is the branch or tag with a hash over the
    listing behind it (`master-1a2b3c4d5e6f`), so that a branch that moved is seen.
    """
    from modelscope.hub.api import HubApi

    try:
        name, revision, endpoint = repository.name, repository.revision, repository.endpoint
        api = HubApi(endpoint=endpoint)
        cookies = api.get_cookies()
        if repository.kind == "model":
            branch = api.get_valid_revision_detail(name, revision=revision, cookies=cookies, endpoint=endpoint)
            base = str(branch["Revision"])
            listed = api.get_model_files(
                name, revision=base, recursive=True, use_cookies=cookies or False, endpoint=endpoint
            )
        else:
            base = revision or "master"
            listed = _dataset_files(api, name, base, endpoint)
    except Exception as error:
        raise _trouble(error) from error
    files = tuple(
        HubFile(str(entry["Path"]), int(entry.get("Size") or 0), str(entry.get("Sha256") or ""))
        for entry in listed
        if entry.get("Type") != "tree"
    )
    content = "".join(sorted(f"{file.path}\0{file.size}\0{file.sha256}\n" for file in files))
    return Listing(f"{base}-{hashlib.sha256(content.encode()).hexdigest()[:12]}", files)


def _dataset_files(api: Any, name: str, revision: str, endpoint: str) -> list[Mapping[str, Any]]:
    """All pages of a data set's listing. (snapshot_download stops at the first page that fails, without an error.)"""
    files: list[Mapping[str, Any]] = []
    page = 1
    while True:
        batch = api.get_dataset_files(
            name, revision=revision, page_number=page, page_size=PAGE, recursive=True, endpoint=endpoint
        )
        files += batch
        if len(batch) < PAGE:
            return files
        page += 1


def download(repository: Repository, listing: Listing, wanted: list[str], folder: Path) -> None:
    """Downloads the wanted files of a listing into `folder`, four at a time, going on where it stopped."""
    from modelscope.hub import file_download
    from modelscope.hub.snapshot_download import snapshot_download

    # Read when called; the client would otherwise repeat every failure five times, a refusal included.
    file_download.API_FILE_DOWNLOAD_RETRY_TIMES = 1
    revision = listing.revision.rpartition("-")[0]
    try:
        snapshot_download(
            repository.name,
            repo_type=repository.kind,
            revision=revision,
            local_dir=str(folder),
            allow_patterns=wanted,
            endpoint=repository.endpoint,
            max_workers=4,
            enable_file_lock=False,  # the parent holds a lock of its own
        )
    except Exception as error:
        missing = next((path for path in wanted if not (folder / path).is_file()), None)
        raise _trouble(error, _refusal(repository, revision, missing)) from error


def _refusal(repository: Repository, revision: str, missing: str | None) -> int:
    """The HTTP status of a file that did not come (0: no answer): the client reports failed files without a reason."""
    import requests
    from modelscope.hub.api import HubApi
    from modelscope.hub.file_download import get_file_download_url

    if missing is None:
        return 0
    api = HubApi(endpoint=repository.endpoint)
    if repository.kind == "model":
        url = get_file_download_url(repository.name, missing, revision, repository.endpoint)
    else:
        owner, _, name = repository.name.partition("/")
        url = api.get_dataset_file_url(missing, name, owner, revision=revision, endpoint=repository.endpoint)
    try:
        with requests.get(url, stream=True, timeout=15, cookies=api.get_cookies()) as response:
            return response.status_code
    except requests.RequestException:
        return 0


def _trouble(error: BaseException, status: int = 0) -> Trouble:
    import requests
    from modelscope.hub.errors import NotExistError, RequestError

    message = str(error).strip().split("\n")[0]
    if isinstance(error, OSError) and error.errno == 28:
        return Trouble(Failure.DISK_FULL, message)
    if isinstance(error, NotExistError):
        return Trouble(Failure.NOT_FOUND, message)
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else status
    if status >= 400:
        return Trouble(by_status(status), f"HTTP {status}: {message}")
    if isinstance(error, RequestError):
        return Trouble(Failure.NOT_FOUND, message)
    if isinstance(error, (requests.ConnectionError, requests.Timeout)):
        return Trouble(Failure.UNREACHABLE, message)
    return Trouble(Failure.TRANSIENT, f"{type(error).__name__}: {message}")


def endpoint() -> str:
    """ModelScope's address: MODELSCOPE_DOMAIN, as its client has it, else www.modelscope.cn."""
    return f"https://{os.environ.get('MODELSCOPE_DOMAIN') or DEFAULT_DOMAIN}"
