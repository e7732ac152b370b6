"""Which version of devalloc this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


def installed_version() -> str:
    """What the installation says; ``unknown`` where the packages run from a folder that was never installed."""
    try:
        return version("devalloc") or UNKNOWN
    except PackageNotFoundError:
        return UNKNOWN
