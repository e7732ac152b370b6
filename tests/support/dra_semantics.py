"""What the words of resource.k8s.io mean, for the oracle: amounts, policies, selections, taints, some expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Protocol

Manifest = Mapping[str, Any]
Value = tuple[str, Any]
"""(type, value) of an attribute"""


class Named(Protocol):
    """A device as expressions see it."""

    driver: str
    manifest: Manifest


def quantity(text: str) -> Fraction:
    """A Kubernetes quantity: rounded up to nano units; binary ones are capped at 2^63-1."""
    match = re.fullmatch(r"([+-]?[\d.]+)(?:[eE]([+-]?\d+)|([numkKMGTPE]?i?))", text)
    assert match is not None, text
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        value *= Fraction(10) ** int(exponent)
    elif suffix and suffix.endswith("i"):
        value *= 1024 ** (1 + "KMGTPE".index(suffix[0]))
    elif suffix:
        value *= Fraction(10) ** {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[suffix]
    nano = -((-abs(value) * 10**9) // 1)
    value = Fraction(int(nano), 10**9) * (1 if value >= 0 else -1)
    return min(value, Fraction(2**63 - 1)) if suffix and suffix.endswith("i") else value


def rounded(requested: Fraction | None, capacity: Manifest, fractional: bool) -> Fraction | None:
    """What a request takes of a capacity; None when its policy has nothing for it. Raises OverflowError."""
    policy = capacity.get("requestPolicy") or {}
    if requested is None:
        return quantity(policy["default"] if policy.get("default") is not None else capacity["value"])
    if policy.get("validValues"):
        return min((v for v in map(quantity, policy["validValues"]) if v >= requested), default=None)
    limits = policy.get("validRange") or {}
    amount = max(requested, quantity(limits["min"])) if limits.get("min") else requested
    if limits.get("step") and amount > quantity(limits["min"]):
        amount = _stepped(amount, limits, fractional)
    if amount < 0:
        raise OverflowError
    return None if limits.get("max") and amount > quantity(limits["max"]) else amount


def _stepped(amount: Fraction, limits: Manifest, fractional: bool) -> Fraction:
    scale = 1000 if fractional and all(_is_milli(quantity(text)) for text in limits.values()) else 1
    low, step = (-((-quantity(limits[name]) * scale) // 1) for name in ("min", "step"))
    wanted = -((-amount * scale) // 1)
    if scale == 1000 and wanted != amount * scale:
        raise OverflowError
    result = low + step * -((low - wanted) // step)
    if max(wanted, result) >= 2**63:
        raise OverflowError
    return Fraction(int(result), scale)


def _is_milli(amount: Fraction) -> bool:
    return (amount * 1000).denominator == 1 and abs(amount * 1000) < 2**63


def requested_amounts(spec: Manifest) -> dict[str, str]:
    return dict((spec.get("capacity") or {}).get("requests") or {})


def has_groups(spec: Manifest) -> bool:
    """Compatibility groups are an alpha feature: such a slice is not seen."""
    draws = [draw for device in spec.get("devices") or () for draw in device.get("consumesCounters") or ()]
    return any(draw.get("compatibilityGroups") for draw in draws)


def key_of(one: Manifest) -> tuple[str, str, str]:
    return one["driver"], one["pool"], one["device"]


def typed_values(attribute: Manifest) -> Iterator[Value]:
    for kind in ("int", "bool", "string", "version"):
        yield from ((kind, value) for value in attribute.get(f"{kind}s") or ())
        if kind in attribute:
            yield kind, attribute[kind]


def tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


def term_matches(term: Manifest, node: Manifest) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    labels = node["metadata"].get("labels") or {}
    names = {"metadata.name": node["metadata"]["name"]}
    matched = [_matches(one, labels) for one in expressions] + [_matches(one, names) for one in fields]
    return bool(matched) and all(matched)


def _matches(requirement: Manifest, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    values = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(*values)
        case "Lt":
            return value is not None and int(value) < int(*values)
    raise AssertionError(requirement)


def _own(device: Named, name: str, domain: str | None = None) -> Any:
    """The value of ``device.attributes[domain].name``, a scalar or a list; None when there is none."""
    domain = domain or device.driver
    attributes = device.manifest.get("attributes") or {}
    value = attributes.get(f"{domain}/{name}")
    if value is None and domain == device.driver:
        value = attributes.get(name)
    return None if value is None else next(iter(value.values()))


def _must(value: Any) -> Any:
    if value is None:
        raise LookupError("no such key")
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, list):
        raise LookupError("no such overload")
    return _must(value)


def _memory(device: Named, domain: str | None = None) -> Fraction | None:
    capacity = (device.manifest.get("capacity") or {}).get("m") if domain in (None, device.driver) else None
    return None if capacity is None else quantity(capacity["value"])


MEANING: dict[str, Callable[[Named], bool]] = {
    'device.driver == "a.io"': lambda d: d.driver == "a.io",
    "device.attributes[device.driver].?ok.orValue(false)": lambda d: bool(_own(d, "ok")),
    'device.attributes[device.driver].?model.orValue("") == "big"': lambda d: _own(d, "model") == "big",
    'device.attributes["x.org"].?root.orValue("") == "r"': lambda d: _own(d, "root", "x.org") == "r",
    "device.attributes[device.driver].serial < 3": lambda d: _must(_own(d, "serial")) < 3,
    'device.attributes[device.driver].firmware.isGreaterThan(semver("1.9.9"))': lambda d: (
        _scalar(_own(d, "firmware")) > "1.9.9"
    ),
    'has(device.capacity[device.driver].m) && device.capacity[device.driver].m.compareTo(quantity("3")) >= 0': (
        lambda d: (_memory(d) or 0) >= 3
    ),
    "device.attributes[device.driver].serial in [0, 1, 3, 5]": lambda d: _must(_own(d, "serial")) in (0, 1, 3, 5),
    "!device.attributes[device.driver].ok || device.attributes[device.driver].serial != 1": (
        lambda d: not _must(_own(d, "ok")) or _must(_own(d, "serial")) != 1
    ),
    "device.allowMultipleAllocations": lambda d: bool(d.manifest.get("allowMultipleAllocations")),
    "true": lambda d: True,
    'device.attributes[device.driver].model == "big"': lambda d: _must(_own(d, "model")) == "big",
    "device.attributes[device.driver].numa == 0": lambda d: _must(_own(d, "numa")) == 0,
    'device.attributes["x.org"].root == "r"': lambda d: _must(_own(d, "root", "x.org")) == "r",
    'device.capacity["c.io"].m.isGreaterThan(quantity("0"))': lambda d: _must(_memory(d, "c.io")) > 0,
}
