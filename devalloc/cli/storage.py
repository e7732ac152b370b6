"""Opening the embedded store for a verb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.verb import BadInput, Failed

if TYPE_CHECKING:
    from devalloc.store.sqlite import SQLiteStore


def store_path(path: Path | None) -> Path:
    """The given path, or the default of this user."""
    from devalloc.store.paths import default_path

    if path is not None and not path.name:
        raise BadInput(f"--store names no file: {str(path)!r}")
    return path if path is not None else default_path()


def is_default(store: Path) -> bool:
    """Whether it is this user's usual store, whatever the environment says now."""
    import os

    from devalloc.store.paths import ENVIRONMENT, default_path

    return store == default_path({name: value for name, value in os.environ.items() if name != ENVIRONMENT})


def node_state(path: Path | None, store: Path) -> Path:
    """The given state folder of the node plugin, or the one beside the store."""
    return (path if path is not None else store.parent / "node").absolute()


@contextmanager
def opened(path: Path | None, *, create: bool = False) -> Iterator[SQLiteStore]:
    """The store, closed at the end. Raises Failed when there is none and it is not to be made."""
    from devalloc.store.sqlite import SQLiteStore

    where = store_path(path)
    if not create and not where.exists():
        raise Failed(
            f"there is no store at {where}; start one with `devalloc up` or `devalloc apply -f`, "
            "name another with --store or DEVALLOC_STORE, or a cluster with --kubeconfig or DEVALLOC_KUBECONFIG"
        )
    store = SQLiteStore(where)
    try:
        yield store
    finally:
        store.close()
