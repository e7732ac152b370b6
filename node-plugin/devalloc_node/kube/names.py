"""Names and values as the API of Kubernetes takes them: what does not fit is changed the same way every time."""

from __future__ import annotations

import hashlib
import re

from devalloc_node.model.names import is_label, is_subdomain

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
MAX_ID = 32
"""Characters of an attribute's or capacity's name, without its domain."""
MAX_VALUE = 64
"""Bytes of a text attribute."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NOT_IN_LABELS = re.compile(r"[^a-z0-9]+", re.ASCII)
_NOT_IN_LABEL_VALUES = re.compile(r"[^A-Za-z0-9_.]+", re.ASCII)


def is_qualified(name: str) -> bool:
    """Whether it can name an attribute: an identifier, with or without ``domain/`` before it."""
    domain, slash, short = name.rpartition("/")
    if slash and not (len(domain) <= MAX_LABEL and is_subdomain(domain)):
        return False
    return len(short) <= MAX_ID and _ID.fullmatch(short) is not None


def dns_label(name: str) -> str:
    """The name, if it is a DNS label; else the nearest one and a digest, so that different names stay different."""
    if is_label(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    near = _NOT_IN_LABELS.sub("-", name.lower()).strip("-")[: MAX_LABEL - 9].rstrip("-")
    return f"{near}-{digest}" if near else digest


def label_value(text: str) -> str:
    """A text as the value of a taint, for people: ``in-use-mdev-4f3c…``. At most 63 characters, perhaps none."""
    return _NOT_IN_LABEL_VALUES.sub("-", text)[:MAX_LABEL].strip("-_.")


def text_value(text: str) -> str:
    """As much of a text as an attribute takes, cut between characters."""
    encoded = text.encode()
    if len(encoded) <= MAX_VALUE:
        return text
    return encoded[: MAX_VALUE - 3].decode(errors="ignore") + "..."


def object_name(*parts: str) -> str:
    """A name for an object, made of parts that are subdomains; a digest stands for what is too long."""
    name = "-".join(parts)
    if len(name) <= MAX_SUBDOMAIN:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    tail = f"-{digest}-{parts[-1]}"
    return name[: MAX_SUBDOMAIN - len(tail)].rstrip("-.") + tail
