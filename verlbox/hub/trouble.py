"""How a hub can fail, sorted by what can be done about it."""

from __future__ import annotations

from enum import Enum


class Failure(str, Enum):
    """What went wrong, by what can be done about it."""

    DENIED = "denied"  # 401, 403: a token is missing or wrong; trying again is useless
    NOT_FOUND = "not-found"  # 404: no such repository, revision or file there
    REFUSED = "refused"  # another answer that will not change
    UNREACHABLE = "unreachable"  # no connection
    TRANSIENT = "transient"  # 429, 5xx, a connection that broke: may work next time
    UNUSABLE = "unusable"  # the repository is there, but not what a run needs
    DAMAGED = "damaged"  # what arrived is not what the hub listed
    DISK_FULL = "disk-full"


class Trouble(Exception):
    """A failure of a hub, with the client's own words."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


def by_status(status: int) -> Failure:
    """The kind of failure of an HTTP status."""
    if status in (401, 403):
        return Failure.DENIED
    if status in (404, 410):
        return Failure.NOT_FOUND
    if status in (408, 425, 429) or status >= 500:
        return Failure.TRANSIENT
    return Failure.REFUSED
