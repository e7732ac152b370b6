"""What a claim was given on this node, in either dialect: the input of preparing it; and the names in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from devalloc.api.fields import is_label, is_subdomain_name
from devalloc_node.errors import Denied

Configs = tuple[Mapping[str, Any], ...]
"""Configuration objects as manifests (``{"apiVersion", "kind", "spec", …}``), the weightiest first."""


@dataclass(frozen=True, slots=True, order=True)
class ClaimRef:
    """A claim as callers name it. The UID is its identity; the names are for people."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class NamedDevice:
    """A device of a claim, by the names that it has in requests, journals and metadata."""

    __slots__ = ()
    pool: str
    device: str
    share: str | None

    @property
    def name(self) -> str:
        """``pool/device``: what all shares of it have in common."""
        return f"{self.pool}/{self.device}"

    @property
    def key(self) -> str:
        """``pool/device`` or ``pool/device/share``: which of the claim's devices it is."""
        return self.name if self.share is None else f"{self.name}/{self.share}"


@dataclass(frozen=True, slots=True)
class GrantedDevice(NamedDevice):
    """One device of a claim."""

    requests: tuple[str, ...]
    """Which requests of the claim it answers: names in resource.k8s.io (without the part behind a slash), indexes into
    spec.claims for a DeviceClaim. Empty: all."""
    pool: str
    device: str
    admin: bool = False
    """Access beside the owner: nothing is bound, and no other claim is excluded (S14)."""
    share: str | None = None
    """The share's id, or None where the device is held whole."""
    class_configs: Configs = ()
    """From the class. They win over ``claim_configs`` (T6)."""
    claim_configs: Configs = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What the device was when it was allocated (``devalloc.api.device_identity``); empty: not recorded."""


@dataclass(frozen=True, slots=True)
class Grant:
    """All that a claim holds on this node."""

    ref: ClaimRef
    kind: str
    """``DeviceClaim`` or ``ResourceClaim``."""
    devices: tuple[GrantedDevice, ...]
    pods: tuple[str, ...] = field(default=())
    """Names of the pods or machines that the claim is reserved for, for people."""
    pod_claim_name: str | None = None
    """Of a ResourceClaim that was made from a template: what pods call it (``resource.kubernetes.io/pod-claim-name``).
    The metadata file is found under this name."""

    def identities(self) -> list[str]:
        """Which devices it is about, and how they are held."""
        return sorted(
            f"{device.name}{'/' + device.share if device.share else ''}{' (admin)' if device.admin else ''}"
            for device in self.devices
        )


class Grants(Protocol):
    """Where claims are looked up. Safe for threads."""

    def get(self, ref: ClaimRef) -> Grant:
        """What the claim holds on this node, and goes on holding until it is let go. Called under the claim's lock.

        Raises Denied: ``ClaimNotFound``, ``ClaimUidMismatch`` (another object has the name now),
        ``ClaimNotAllocated``, ``ClaimElsewhere`` (nothing of it is on this node), ``ClaimInvalid``. Raises Failed when
        the store cannot answer.
        """

    def look(self, ref: ClaimRef) -> Grant:
        """What the claim holds on this node now, without its counting as held by that. Raises as ``get``."""

    def is_gone(self, ref: ClaimRef) -> bool:
        """True only when the store answered that no object of this UID exists (T16). Raises Failed when it cannot."""

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        """Whether the claim exists and belongs to the node with this name: it has devices of that node, or is prepared
        there. Raises Failed when the store cannot answer."""

    def identity(self) -> str:
        """Which cluster or store is asked: the same text as long as it is the same one, with the same objects (T16).
        Raises Failed when it cannot answer."""

    def let_go(self, ref: ClaimRef) -> None:
        """Nothing of the claim is on this node any more, so its devices may be released or given to others. Called
        under the claim's lock, again and again where it failed. Raises Failed when the store cannot answer."""

    def held(self) -> Sequence[ClaimRef]:
        """The claims that count as held by this node: those of ``get`` that were not let go. Empty where nothing keeps
        count. Raises Failed when the store cannot answer."""


_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,62}[A-Za-z0-9])?")


def is_uid(text: str) -> bool:
    """Letters, digits and dashes, at most 64 characters: Kubernetes has UUIDs, other stores their own."""
    return _UID.fullmatch(text) is not None


def shown(text: str, most: int = 64) -> str:
    """A text of unknown origin for a message: quoted, without control characters, cut."""
    return repr(text) if len(text) <= most else f"{text[:most]!r} and {len(text) - most} more characters"


def check_ref(ref: ClaimRef) -> None:
    """Raises Denied ``ClaimNameInvalid`` for names that no claim can have."""
    for what, text, fits, rule in (
        ("namespace", ref.namespace, is_label(ref.namespace), "a DNS label in lower case"),
        ("name", ref.name, is_subdomain_name(ref.name), "a DNS name in lower case of at most 253 characters"),
        ("UID", ref.uid, is_uid(ref.uid), "at most 64 letters, digits and dashes"),
    ):
        if not fits:
            raise Denied("ClaimNameInvalid", f"the {what} of the claim must be {rule}, not {shown(text)}")
