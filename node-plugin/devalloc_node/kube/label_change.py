"""Withdraw what this node published under its previous label, before publishing anything new (T1).

So two allocators never allocate the same device. What it published under its previous name, it cannot withdraw: it
logs that.

What claims of the other dialect still hold cannot be taken back. A card of which they hold anything is published with
``devalloc.io/unavailable`` until they have let go: as a whole, for what is left of it depends on what they have.

An allocator may answer a claim from what it saw before it was taken back, so it is given a moment before the claims are
looked at. One that is later still gives a device out that no node prepares: this node serves the other dialect no more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.cordon import has_cordon_annotation
from devalloc.api.dedicated_pools import base_pool_name
from devalloc.api.meta import DEVMGMT, PUBLISHED_BY, UNAVAILABLE
from devalloc.api.pool import Attribute, Device, DevicePool
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.discover import Discovery
from devalloc.inventory.pools import node_scoped_name
from devalloc.store.kubernetes.api_error import ApiError, Object
from devalloc.store.kubernetes.client import Client, path_segment
from devalloc_node.kube.publisher import SLICES

log = logging.getLogger(__name__)

MigrationScan = Callable[[DeviceRecords], Discovery]

POOLS = f"/apis/{DEVMGMT}/devicepools"
SETTLE_SECONDS = 2.0
"""For what an allocator decided from what is taken back now."""
_SLOT = "0000-00-00"


@dataclass(frozen=True, slots=True)
class PublishDialect:
    """How devices were published."""

    plural: str
    objects: str
    """Path of their list."""
    claim: str
    """Kind of what holds them."""
    group: str
    """Path of the claims' version."""

    @property
    def claims(self) -> str:
        """Path of their list."""
        return f"{self.group}/{self.claim.lower()}s"

    def path(self, claim: Object) -> str:
        namespace, name = (path_segment(claim["metadata"][each]) for each in ("namespace", "name"))
        return f"{self.group}/namespaces/{namespace}/{self.claim.lower()}s/{name}"


OF_POOLS = PublishDialect("DevicePools", POOLS, "DeviceClaim", f"/apis/{DEVMGMT}")
OF_SLICES = PublishDialect("ResourceSlices", SLICES, "ResourceClaim", SLICES.rpartition("/")[0])


class DialectMigration:
    """Looks at the devices of a node that may have been published in another dialect. For one thread."""

    def __init__(
        self,
        client: Client,
        dialect: PublishDialect,
        node: str,
        driver: str,
        look: MigrationScan,
        recorded: Callable[[], Mapping[str, str]],
        settle: float = SETTLE_SECONDS,
    ) -> None:
        """``dialect``: the one that is not published any more. ``recorded``: the pools of which claims of another kind
        than the node serves have something, as the journal knows, and which claims."""
        self._client = client
        self._dialect = dialect
        self._node = node
        self._driver = driver
        self._look = look
        self._recorded = recorded
        self._settle = settle
        self._is_back = False
        self._claims: dict[str, str] | None = None
        """Paths and UIDs of those that hold devices of this node. None: not looked for yet."""
        self._reported: dict[str, str] = {}

    def look(self, devices: DeviceRecords) -> Discovery:
        """The node's devices as they may be published now. Raises ApiError if that cannot be read."""
        if not self._is_back:
            self._take_back()
            self._is_back = True
        discovery = self._look(devices)
        held = {base_pool_name(pool): claim for pool, claim in [*self._allocated(), *self._recorded().items()]}
        self._tell(held)
        return replace(
            discovery, pools=[self._withheld(pool, held.get(pool.metadata.name)) for pool in discovery.pools]
        )

    def _take_back(self) -> None:
        """An API server that does not know the kind has none of it. One that lets us see none never let us publish any:
        what others left belongs to the admin who installed the rights."""
        path, taken = self._dialect.objects, 0
        for one in self._listed(path, {"fieldSelector": f"spec.nodeName={self._node}"}):
            if not self._is_ours(one):
                continue
            metadata = one["metadata"]
            at = f"{path}/{path_segment(metadata['name'])}"
            if path == POOLS and has_cordon_annotation(one):  # a cordon is still there when the node is labelled back
                spec = {name: one["spec"][name] for name in ("nodeName", "driver") if name in one["spec"]}
                if one["spec"] == spec:
                    continue
                self._client.replace(at, {**one, "spec": spec})
            else:
                self._client.delete(at, metadata["uid"])
            taken += 1
        if taken:
            log.warning("withdrew %d %s of node %s: it publishes none", taken, self._dialect.plural, self._node)
            time.sleep(self._settle)

    def _is_ours(self, one: Object) -> bool:
        if one["spec"].get("nodeName") != self._node:
            return False
        if self._dialect.objects == POOLS:
            return bool(one["metadata"].get("labels", {}).get(PUBLISHED_BY) == "inventory")
        return bool(one["spec"].get("driver") == self._driver)

    def _allocated(self) -> Iterator[tuple[str, str]]:
        """Pools of this node, and the claims of the other kind that were given something of them. All claims are looked
        at once, then those alone that hold something: nothing is there any more that others could be given."""
        if self._claims is None:
            listed = list(self._listed(self._dialect.claims, {}))
            self._claims = {self._dialect.path(one): _uid(one) for one in listed if [*self._pools(one)]}
        for path, uid in list(self._claims.items()):
            try:
                claim = self._client.get(path)
            except ApiError as error:
                if not error.is_not_found:
                    raise
                claim = {}
            pools = list(self._pools(claim)) if _uid(claim) == uid else []
            if not pools:
                del self._claims[path]
            for pool in pools:
                yield pool, "{} {namespace}/{name}".format(self._dialect.claim, **claim["metadata"])

    def _pools(self, claim: Object) -> Iterator[str]:
        """The pools of this node of which a claim has something."""
        status = claim.get("status") or {}
        if self._dialect.objects == POOLS:
            names = [_text(entry, "devicePoolName") for entry in status.get("allocations") or ()]
        else:
            results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
            ours = [each for each in results if _text(each, "driver") == self._driver]
            names = [_text(each, "pool") for each in ours if each.get("adminAccess") is not True]
        beginning = node_scoped_name(self._node, _SLOT).removesuffix(_SLOT)
        return (name for name in names if name.startswith(beginning))

    def _listed(self, path: str, params: Mapping[str, str]) -> Iterator[Object]:
        try:
            for page in self._client.list(path, params):
                yield from page["items"]
        except ApiError as error:
            if error.status == 403:
                log.warning("cannot read what node %s published or allocated before: %s", self._node, error)
            elif error.status != 404:
                raise

    def _withheld(self, pool: DevicePool, claim: str | None) -> DevicePool:
        if claim is None:
            return pool
        common = [each for each in pool.spec.attributes if each.name == UNAVAILABLE]
        devices = [_unavailable(device, common, self._why(claim)) for device in pool.spec.devices]
        return pool.model_copy(update={"spec": pool.spec.model_copy(update={"devices": devices})})

    def _why(self, claim: str) -> str:
        return f"in use: {claim}, from when the node published {self._dialect.plural}"

    def _tell(self, held: dict[str, str]) -> None:
        for pool in sorted(held.keys() | self._reported.keys()):
            if held.get(pool) != self._reported.get(pool):
                log.warning("pool %s is %s", pool, self._why(held[pool]) if pool in held else "free again")
        self._reported = held


def warn_of_previous_name(client: Client, path: str, previous: str) -> None:
    """Log which pools or slices (``path`` of their list) a cluster still has of this node's previous name: they go with
    the Node of that name, and a node may delete only its own."""
    kind = path.rpartition("/")[2]
    try:
        pages = client.list(path, {"fieldSelector": f"spec.nodeName={previous}"})
        names = [one["metadata"]["name"] for page in pages for one in page["items"]]
    except ApiError as error:
        log.warning("cannot list the %s of node %s, the previous name of this node: %s", kind, previous, error)
        return
    if names:
        log.warning(
            "the cluster still has %s of node %s, the previous name of this node: %s. If this host has their devices, "
            "delete them or the Node %s",
            kind,
            previous,
            ", ".join(sorted(names)),
            previous,
        )


def _unavailable(device: Device, common: list[Attribute], why: str) -> Device:
    reasons = [each for each in device.attributes if each.name == UNAVAILABLE] or common
    others = [each for each in device.attributes if each.name != UNAVAILABLE]
    text = "; ".join([*(str(each.value) for each in reasons), why])
    return device.model_copy(update={"attributes": [*others, Attribute.of(UNAVAILABLE, text)]})


def _uid(claim: Object) -> str:
    return _text(claim.get("metadata"), "uid")


def _text(content: Any, name: str) -> str:
    value = content.get(name) if isinstance(content, dict) else None
    return value if isinstance(value, str) else ""
