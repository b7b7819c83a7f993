"""Models and data sets from ModelScope, Hugging Face, a mirror of it, this machine, or verlbox itself."""

from verlbox.hub.bundled import names as bundled_names
from verlbox.hub.fetch import fetch_dataset, fetch_model, is_offline
from verlbox.hub.progress import progress_bar
from verlbox.hub.spec import DEFAULT_SOURCES, DatasetSpec, Fetched, ModelSpec, Patience, Progress, Source

__all__ = [
    "DEFAULT_SOURCES",
    "DatasetSpec",
    "Fetched",
    "ModelSpec",
    "Patience",
    "Progress",
    "Source",
    "bundled_names",
    "fetch_dataset",
    "fetch_model",
    "is_offline",
    "progress_bar",
]
