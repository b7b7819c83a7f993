"""Hugging Face and its mirrors, by huggingface_hub. Runs in the worker process only (see worker.py)."""

from __future__ import annotations

import os
from pathlib import Path

from verlbox.hub.spec import HubFile, Listing, Repository
from verlbox.hub.trouble import Failure, Trouble, by_status

ENDPOINT = "https://huggingface.co"
MIRROR = "https://hf-mirror.com"

LISTING_SECONDS = 15.0


def environment(endpoint: str) -> dict[str, str]:
    """What the client reads from its environment when it is imported. Xet only works with Hugging Face itself."""
    official = endpoint.rstrip("/") == ENDPOINT
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "0" if official else "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "15",
        "HF_HUB_DOWNLOAD_TIMEOUT": "30",
        "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "0",
    }


def _token() -> str | bool:
    """The token of the environment; False keeps the client from looking for a stored one."""
    return os.environ.get("HF_TOKEN") or False


def load() -> None:
    """Imports the client."""
    from huggingface_hub import HfApi, snapshot_download  # noqa: F401


def list_files(repository: Repository) -> Listing:
    """The commit and the files of a repository. Raises Trouble."""
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=repository.endpoint, token=_token()).repo_info(
            repository.name,
            repo_type=repository.kind,
            revision=repository.revision,
            files_metadata=True,
            timeout=LISTING_SECONDS,
        )
    except Exception as error:
        raise _trouble(error) from error
    files = tuple(
        HubFile(
            path=sibling.rfilename,
            size=sibling.size or 0,
            sha256=(sibling.lfs.sha256 if sibling.lfs else "") or "",
            git_sha1="" if sibling.lfs else sibling.blob_id or "",
        )
        for sibling in info.siblings or ()
    )
    return Listing(info.sha or "", files)


def download(repository: Repository, listing: Listing, wanted: list[str], folder: Path) -> None:
    """Downloads the wanted files of a listing into `folder`, four at a time, going on where it stopped."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            repository.name,
            repo_type=repository.kind,
            revision=listing.revision,
            local_dir=folder,
            allow_patterns=wanted,
            endpoint=repository.endpoint,
            token=_token(),
            max_workers=4,
        )
    except Exception as error:
        raise _trouble(error) from error


def _trouble(error: BaseException) -> Trouble:
    """The kind of failure. The client wraps some in LocalEntryNotFoundError, whose cause says more."""
    import requests
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    message = str(error).strip().split("\n")[0]
    response = getattr(error, "response", None)
    if response is not None:
        return Trouble(by_status(response.status_code), message)
    if isinstance(error, HFValidationError):
        return Trouble(Failure.NOT_FOUND, message)
    if isinstance(error, requests.RequestException):
        return Trouble(Failure.UNREACHABLE, message)
    if isinstance(error, OSError) and error.errno == 28:
        return Trouble(Failure.DISK_FULL, message)
    return Trouble(Failure.TRANSIENT, f"{type(error).__name__}: {message}")
