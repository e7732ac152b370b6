"""One kind of a cluster, kept true in the mirror: a list, then a watch that goes on where the last one ended."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from devalloc.store.errors import Invalid
from devalloc.store.key import Object
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.mirror import Mirror
from devalloc.store.kubernetes.resources import Resource
from devalloc.store.versions import version_of

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.25, 10.0
"""Before it is tried again after a failure, twice as long after each further one, up to the second; times something
between a half and one and a half, so that not all clients of a server that comes back ask at once."""
SHORT_SECONDS = 1.0
"""A watch that ends sooner without an event is a failure."""


class Reflector:
    """One thread, begun after the first list."""

    def __init__(
        self, client: Client, resource: Resource, mirror: Mirror, *, on_cut: Callable[[], None] = lambda: None
    ) -> None:
        """``on_cut``: called when the server could not be reached: it may be another one afterwards."""
        self.resource = resource
        self._client = client
        self._mirror = mirror
        self._on_cut = on_cut
        self._version = "0"
        self._over = threading.Event()
        self._heard = time.monotonic()
        self._fails = False
        self._thread = threading.Thread(target=self._run, name=f"watch-{resource.plural}", daemon=True)

    @property
    def silent_seconds(self) -> float:
        """For how long nothing can be heard: 0 while there is a watch."""
        return time.monotonic() - self._heard if self._fails else 0.0

    def list(self, params: Mapping[str, str] | None = None, *, anew: bool = False) -> str:
        """Read all objects into the mirror; the version of the API server that they are of. Raises ApiError."""
        objects: list[Object] = []
        version = ""
        for page in self._client.list(self.resource.path, {**self.resource.params, **(params or {})}):
            version = version or _version(page["metadata"])
            objects += [cleaned(obj, self.resource) for obj in page["items"]]
        self._mirror.relist(self.resource.store_kind, objects, version, anew=anew)
        return version

    def begin(self, version: str) -> None:
        """Watch from a version that was listed."""
        self._version = version
        self._thread.start()

    def end(self) -> None:
        """Let the thread end; ``join`` waits for it."""
        self._over.set()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        failures, expired, listed = 0, False, False
        while not self._over.is_set():
            began, told = time.monotonic(), False
            try:
                if expired:
                    self._relist()
                    expired, listed = False, True
                elif failures and self._has_less():
                    expired = True
                    continue
                for event in self._client.watch(
                    self.resource.path, self.resource.params, self._version, self._over, self._begun
                ):
                    failures, told, listed = 0, True, False
                    self._tell(event)
                if told or time.monotonic() - began >= SHORT_SECONDS:
                    failures, listed = 0, False
                    continue
                why = "the watch ends at once"
            except ApiError as error:
                if error.is_gone:
                    log.info("the watch of %s is too old and is begun anew: %s", self.resource.plural, error)
                    if not expired and not listed:
                        expired = True
                        continue
                    expired = True
                why = str(error)
                self._on_cut()
            except Exception as error:  # whatever the server says, this thread goes on
                log.exception("a watch of %s could not be understood; begun anew", self.resource.plural)
                why, expired = str(error), True
            if self._over.is_set():
                return
            if not self._fails:
                self._fails, self._heard = True, began
            failures += 1
            pause = min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 20), MOST_PAUSE_SECONDS) * random.uniform(0.5, 1.5)
            if failures in (1, 5) or failures % 20 == 0:
                log.warning("%s cannot be watched: %s; next try in %.1f s", self.resource.plural, why, pause)
            self._over.wait(pause)

    def _begun(self) -> None:
        self._fails = False

    def _has_less(self) -> bool:
        """Whether the server is at an older version than this: a watch from here would wait for what is long over."""
        page = self._client.get(self.resource.path, {"limit": "1"})
        return version_of(_version(page["metadata"])) < version_of(self._version)

    def _relist(self) -> None:
        """What happened meanwhile is what differs."""
        known = self._version
        version = self.list()
        if version_of(version) < version_of(known):
            log.warning(
                "the API server is at version %s of %s and was at %s: a backup was put back; going on with what it has",
                version,
                self.resource.plural,
                known,
            )
            version = self.list(anew=True)
        self._version = version

    def _tell(self, event: Object) -> None:
        obj = event["object"]
        version = _version(obj["metadata"])
        if event.get("type") == "BOOKMARK":
            self._mirror.tell_version(self.resource.store_kind, version)
        else:
            self._mirror.tell(self.resource.store_kind, str(event.get("type")), cleaned(obj, self.resource))
        self._version = version


def cleaned(obj: Object, resource: Resource) -> Object:
    """An object as the store gives it: without who wrote which field, and with its kind, which lists leave out."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    rest = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")}
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    found = {
        "apiVersion": obj.get("apiVersion", version),
        "kind": obj.get("kind", resource.kind),
        "metadata": metadata,
        **rest,
    }
    for path in resource.without:
        found = _without(found, path)
    return found


def _without(content: Object, path: Sequence[str]) -> Object:
    """A copy as far as it differs."""
    name, *rest = path
    if not isinstance(content.get(name), (dict, list)):
        return content
    if rest:
        return {**content, name: _without(content[name], rest)} if isinstance(content[name], dict) else content
    return {key: value for key, value in content.items() if key != name}


def _version(metadata: Object) -> str:
    version = metadata.get("resourceVersion")
    if not isinstance(version, str):
        raise Invalid("the API server told of an object without a resourceVersion")
    version_of(version)
    return version
