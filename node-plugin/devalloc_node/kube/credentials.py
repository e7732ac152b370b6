"""Cluster credentials for a plugin that runs as a service of the host: a pod keeps them fresh in a folder of the host.

A pod's token says on which node it is, and the kubelet replaces it in time; programs outside pods get none. So
a pod that does nothing else copies its token, and the certificate by which the API server is known, to where the
service finds them. They are good as long as the pod is there.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devalloc.store.errors import StoreError
from devalloc.worker import repeat
from devalloc_node.errors import Failed
from devalloc_node.journal.state_folder import make_private

KUBECONFIG, TOKEN, AUTHORITY, ENVIRONMENT = "kubeconfig", "token", "ca.crt", "environment"
"""The files in the folder; the first one names the next two, the last one is for the service's environment."""
LOOK_SECONDS = 5.0
"""Between looks whether the files are still as the pod has them."""
LEFT_SECONDS = 4 * LOOK_SECONDS
"""After this time without a reader, a token has no owner."""
_MOST = 1 << 20
"""Bytes of a file; a token has some hundreds."""
_RANDOM_BYTES = 8
"""In the name of a file that is being written."""


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """What a pod has of the cluster, and where a service of its host is to find it."""

    folder: Path
    """Of the host; only the pod's user may enter it."""
    account: Path
    """The folder with ``token`` and ``ca.crt``, as the kubelet keeps them."""
    server: str
    """The URL of the API server."""
    node: str
    """The name of the node."""

    def keep(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Keep the files as the pod has them until ``stop``, then take away the token that is its own. Where another
        pod came after it, that one keeps them. What cannot be read or written just then is said, and tried again.
        Raises Failed where they cannot be written at first."""
        self.write()
        self._clear()
        own = self._token()
        say(f"the credentials of node {self.node} for {self.server} are in {self.folder}")
        trouble = ""

        def look() -> None:
            nonlocal own, trouble
            if self._is_of_another(own):
                return
            try:
                written = self.write()
                own = self._token()
            except Failed as error:
                if error.message != trouble:
                    say(f"WARNING: {error.message}; trying again")
                trouble = error.message
                return
            trouble = ""
            if written:
                say(f"rewrote {', '.join(written)}")

        repeat(stop, look, LOOK_SECONDS, "cannot keep the credentials", delay=LOOK_SECONDS)
        self.withdraw()

    def write(self) -> list[str]:
        """Write the files that are not as they are to be; their names. Raises Failed."""
        try:
            make_private(self.folder)
            wanted = {name: _read(self.account / name) for name in (AUTHORITY, TOKEN)}
            wanted |= {KUBECONFIG: json.dumps(self._kubeconfig(), indent=1).encode() + b"\n"}
            wanted |= {ENVIRONMENT: f"DEVALLOC_NODE_NODE_NAME={self.node}\n".encode()}
            written = [name for name, content in wanted.items() if _put(self.folder / name, content)]
            os.utime(self.folder / TOKEN, follow_symlinks=False)
            return written
        except (OSError, StoreError) as error:
            raise Failed(
                "AccessUnavailable", f"cannot store the cluster credentials in {self.folder}: {error}"
            ) from error

    def withdraw(self) -> None:
        """Take the token away, unless it is another pod's by now."""
        with suppress(OSError):
            if _read(self.folder / TOKEN) == _read(self.account / TOKEN):
                (self.folder / TOKEN).unlink()

    def _clear(self) -> None:
        """Remove what pods left that were killed while they wrote: a token in it may still be good for an hour. Where
        another pod is just writing, it says that it could not, and writes again."""
        for name in (AUTHORITY, TOKEN, KUBECONFIG, ENVIRONMENT):
            for left in self.folder.glob(f".{name}.{'[0-9a-f]' * 2 * _RANDOM_BYTES}"):
                with suppress(OSError):
                    left.unlink()

    def _token(self) -> bytes | None:
        with suppress(OSError):
            return _read(self.folder / TOKEN)
        return None

    def _is_of_another(self, own: bytes | None) -> bool:
        """Whether there is a token that is not as it was left here, and a pod renews it."""
        with suppress(OSError):
            age = time.time() - (self.folder / TOKEN).lstat().st_mtime
            return self._token() not in (None, own) and abs(age) < LEFT_SECONDS
        return False

    def _kubeconfig(self) -> Mapping[str, object]:
        """With paths that are relative to it, so that it is good wherever the folder is seen."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": {"server": self.server, "certificate-authority": AUTHORITY}}],
            "users": [{"name": self.node, "user": {"tokenFile": TOKEN}}],
            "contexts": [{"name": self.node, "context": {"cluster": "cluster", "user": self.node}}],
            "current-context": self.node,
        }


def _read(path: Path) -> bytes:
    """Raises OSError, also where there is too much of it."""
    with path.open("rb") as file:
        content = file.read(_MOST + 1)
    if not 0 < len(content) <= _MOST:
        raise OSError(f"{path} has {'no content' if not content else 'more than 1 MiB'}")
    return content


def _put(path: Path, content: bytes) -> bool:
    """Make a file so, for its user alone and at once; whether it was not. Raises OSError."""
    with suppress(FileNotFoundError):
        if not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600 and _read(path) == content:
            return False
    new = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    return True
