"""Reading requests: plain values out, or the field that is wrong and why. Nothing here touches the host.

Fields are called as in manifests and in JSON (``spec.nodeName``): who made the request may have read it from there.
"""

from __future__ import annotations

from devalloc.api.fields import is_label, is_subdomain_name
from devalloc_node.model.grant import ClaimRef, is_uid, shown
from devalloc_node.pb import node_pb2 as pb


class BadField(Exception):
    """A request that makes no sense: the text begins with the path of the field."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


def claim_ref(message: pb.ClaimRef, path: str = "claim") -> ClaimRef:
    """Who is meant; the uid may be "". Raises BadField."""
    uid = message.uid
    if uid and not is_uid(uid):
        raise BadField(f"{path}.uid", f"must be at most 64 letters, digits and dashes, not {shown(uid)}")
    return ClaimRef(namespace_of(message.namespace, path), name_of(message.name, path), uid)


def namespace_filter(text: str, path: str = "namespace") -> str:
    """A namespace, or "" for all. Raises BadField."""
    if text and not is_label(text):
        raise BadField(path, f"must be a DNS label in lower case of at most 63 characters, not {shown(text)}")
    return text


def plain_filter(text: str, path: str) -> str:
    """The name of a pool, or "" for all. Raises BadField."""
    if len(text) > 253 or not text.isprintable():
        raise BadField(path, f"must be at most 253 printable characters, not {shown(text)}")
    return text


def namespace_of(text: str, path: str) -> str:
    """The namespace that is meant. Raises BadField."""
    return namespace_filter(text, f"{path}.namespace") or "default"


def name_of(text: str, path: str) -> str:
    """The name of an object. Raises BadField."""
    if not text:
        raise BadField(f"{path}.name", "is required")
    if not is_subdomain_name(text):
        raise BadField(f"{path}.name", f"must be a DNS name in lower case of at most 253 characters, not {shown(text)}")
    return text


def about_claim(claim: pb.ClaimRef) -> dict[str, str]:
    """The claim of a request, for the audit log."""
    return {"claim": claim.uid[:64], "name": f"{claim.namespace[:64] or 'default'}/{claim.name[:253]}"}


def about_force(force: bool) -> dict[str, bool]:
    """Whether a request was to be forced, for the audit log."""
    return {"forced": True} if force else {}
