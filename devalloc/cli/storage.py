"""Opening the embedded store for a verb."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from devalloc.cli.command import CommandFailed
from devalloc.cli.served_store import ServedStore
from devalloc.programs.settings import is_default_store, store_path
from devalloc.store import paths
from devalloc.store.paths import access_error


def root_store_note(store: Path) -> str:
    """The end of a sentence about a user's own store that root has another one, which `sudo devalloc up` uses; "" where
    root has none."""
    folder = paths.ROOT_STORE.parent
    is_own = os.geteuid() != 0 and is_default_store(store)
    return f" (root has its own in {folder}: {paths.as_root()})" if is_own and folder.is_dir() else ""


def _takes_kubeconfig() -> bool:
    """Whether the current command has --kubeconfig."""
    invoked = click.get_current_context(silent=True)
    return invoked is not None and any(param.name == "kubeconfig" for param in invoked.command.params)


@contextmanager
def open_embedded_store(path: Path | None, *, create: bool = False) -> Iterator[ServedStore]:
    """Open the store; close it at the end. It shows machines of nodes that no plugin serves any more as unknown. Raises
    CommandFailed if it does not exist, unless ``create`` is set."""
    where = store_path(path)
    try:
        is_there = create or where.exists()
    except OSError as error:
        raise access_error(f"cannot open the store {where}", error) from error
    if not is_there:
        if os.environ.get("KUBECONFIG") and _takes_kubeconfig():
            raise CommandFailed(
                f"there is no store at {where}; KUBECONFIG is set: for its cluster add --kubeconfig $KUBECONFIG, or "
                "export DEVALLOC_KUBECONFIG=$KUBECONFIG"
            )
        raise CommandFailed(
            f"there is no store at {where}{root_store_note(where)}; create one with `devalloc up` or "
            "`devalloc apply -f`, name another with --store or DEVALLOC_STORE, or a cluster with --kubeconfig or "
            "DEVALLOC_KUBECONFIG"
        )
    store = ServedStore(where)
    try:
        yield store
    finally:
        store.close()
