"""CEL rules of the CRDs: checks of the models that a schema cannot express.

Every list, map and text over which a rule iterates is bounded, to keep the rules within the API server's cost budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from devalloc.api.claim import DeviceClaimDetail
from devalloc.api.fields import json_names


@dataclass(frozen=True, slots=True)
class CrdRule:
    """A CEL rule and its message for objects that violate it; ``field`` is relative to the model."""

    rule: str
    message: str
    field: str = ""


def _is_empty(name: str) -> str:
    return f"(!has(self.{name}) || size(self.{name}) == 0)"


def _is_unchanged(name: str) -> str:
    """A text is unchanged; absent and empty are the same."""
    return f"(has(self.{name}) ? self.{name} : '') == (has(oldSelf.{name}) ? oldSelf.{name} : '')"


def _is_whole(field: str, key: str) -> str:
    """Whether an amount of a map is a whole number in any spelling (2000m, 1.0); isInteger() does not detect all.

    The float gives the nearest number, and the difference is exact. Amounts beyond the precision of a float pass.
    """
    amount = f"quantity(string(self.{field}['{key}']))"
    floor = f"int({amount}.asApproximateFloat())"
    either = " || ".join(f"{amount}.sub({floor}{more}).compareTo(quantity('0')) == 0" for more in ("", " + 1"))
    return f"({amount}.isInteger() || {amount}.isGreaterThan(quantity('9007199254740992')) || {either})"


_WARM = "self.nics.filter(nic, has(nic.backend) && nic.backend == 'warm').size()"
_DETAIL_FIELDS = json_names(DeviceClaimDetail)
_NAMES = "self.{field}.all(name, size(name) > 0 && size(name) <= 253)"


def _names(field: str) -> CrdRule:
    return CrdRule(f"!has(self.{field}) || {_NAMES.format(field=field)}", "names have 1 to 253 characters", f".{field}")


_DETAIL_RULES = (
    _names("requests"),
    _names("limits"),
    *(
        CrdRule(
            f"!has(self.{field}) || !('count' in self.{field}) || !isQuantity(string(self.{field}['count'])) || "
            f"{_is_whole(field, 'count')}",
            "count must be a whole number",
            f".{field}",
        )
        for field in ("requests", "limits")
    ),
    CrdRule(
        "!has(self.limits) || !('count' in self.limits) || !isQuantity(string(self.limits['count'])) || "
        "quantity(string(self.limits['count'])).isGreaterThan(quantity('0'))",
        "count must be at least 1: an allocation has at least one device",
        ".limits",
    ),
    CrdRule(
        "!has(self.limits) || !has(self.requests) || self.limits.all(name, !(name in self.requests) || "
        "!isQuantity(string(self.limits[name])) || "
        "quantity(string(self.limits[name])).compareTo(quantity(string(self.requests[name]))) >= 0)",
        "a limit must not be below its request",
        ".limits",
    ),
)

_METHOD = "(has(self.method) ? self.method : 'virtio-mem')"


def _amount(name: str) -> str:
    return f"quantity(string(self.{name}))"


def _amount_rule(names: Iterable[str], rule: str, message: str, field: str = "") -> CrdRule:
    """A rule about amounts; it passes if one of them is invalid, which another rule reports."""
    none = " || ".join(f"(has(self.{name}) && !isQuantity(string(self.{name})))" for name in names)
    return CrdRule(f"{none} || ({rule})", message, field)


def _whole_amount(name: str) -> str:
    """A whole amount as an int, -1 if it is not whole. Not asInteger(): like isInteger(), it refuses 1.5Gi."""
    amount = _amount(name)
    near = f"int({amount}.asApproximateFloat())"
    is_near = f"{amount}.isLessThan(quantity('4Ei')) && {amount}.sub({near}).compareTo(quantity('0')) == 0"
    return f"({amount}.isInteger() ? {amount}.asInteger() : {is_near} ? {near} : -1)"


def _is_multiple(name: str, block: int) -> str:
    return f"{_whole_amount(name)} % {block} == 0"


_BOUNDS = (
    _amount_rule(
        ("min", "max"), f"{_amount('min')}.compareTo({_amount('max')}) <= 0", "max must not be below min", ".max"
    ),
    _amount_rule(
        ("min", "max", "use"),
        f"!has(self.use) || ({_amount('min')}.compareTo({_amount('use')}) <= 0 && "
        f"{_amount('use')}.compareTo({_amount('max')}) <= 0)",
        "use must be between min and max",
        ".use",
    ),
)

RULES: dict[str, tuple[CrdRule, ...]] = {
    "Attribute": (
        CrdRule(
            " + ".join(f"(has(self.{kind}Value) ? 1 : 0)" for kind in ("string", "int", "quantity", "semVer"))
            + " == 1",
            "must have exactly one of stringValue, intValue, quantityValue, semVerValue",
        ),
    ),
    "Device": (_names("requests"),),
    "DeviceClaimDetail": _DETAIL_RULES,
    "DeviceClaimInstance": (
        *_DETAIL_RULES,
        CrdRule(
            f"{_is_empty('oneOf')} || ({' && '.join(_is_empty(name) for name in _DETAIL_FIELDS)})",
            "cannot be combined with other fields; move those into each alternative",
            ".oneOf",
        ),
    ),
    "DeviceStatus": (
        CrdRule(
            f"{_is_empty('deviceIP')} || {_is_empty('deviceIPs')} || "
            "(has(self.deviceIPs[0].ip) && self.deviceIPs[0].ip == self.deviceIP)",
            "deviceIPs[0] must equal deviceIP",
        ),
    ),
    "DevicePoolSpec": (
        CrdRule(
            f"{_is_unchanged('nodeName')} && self.driver == oldSelf.driver",
            "nodeName and driver of a pool cannot change: they identify its devices; delete it and create another",
        ),
    ),
    "DeviceClaim": (
        CrdRule(
            "!has(oldSelf.status) || !has(oldSelf.status.allocations) || size(oldSelf.status.allocations) == 0 || "
            "self.spec == oldSelf.spec",
            "the spec of an allocated claim cannot change; release the claim first",
            ".spec",
        ),
    ),
    "CpuBounds": (
        *_BOUNDS,
        _amount_rule(("min",), f"{_amount('min')}.compareTo(quantity('10m')) >= 0", "min must be at least 10m", ".min"),
        _amount_rule(
            ("max",), f"{_amount('max')}.compareTo(quantity('1024')) <= 0", "max must not be above 1024", ".max"
        ),
    ),
    "MemoryBounds": (
        *_BOUNDS,
        *(
            _amount_rule(
                (name,),
                f"!has(self.{name}) || {_is_multiple(name, size * 2**20)}",
                f"{name} must be a multiple of {size}Mi",
                f".{name}",
            )
            for name, size in (("min", 2), ("max", 2), ("use", 2), ("slotSize", 128))
        ),
        CrdRule(
            f"({_METHOD} == 'dimm') == has(self.slotSize)",
            "slotSize is required with method dimm, and not allowed with others",
        ),
        *(
            _amount_rule(
                ("min", "slotSize", name),
                f"!has(self.slotSize) || !has(self.{name}) || "
                f"({_whole_amount(name)} - {_whole_amount('min')}) % {_whole_amount('slotSize')} == 0",
                f"{name} must be min plus a multiple of slotSize",
                f".{name}",
            )
            for name in ("max", "use")
        ),
        _amount_rule(
            ("min", "max", "slotSize"),
            f"!has(self.slotSize) || ({_whole_amount('max')} - {_whole_amount('min')}) "
            f"/ {_whole_amount('slotSize')} <= 255",
            "max must be at most 255 times slotSize above min",
            ".max",
        ),
    ),
    "MachineScaling": (
        *(
            _amount_rule(
                (name,),
                f"!has(self.{name}) || {_amount(name)}.compareTo(quantity('{most}')) < 0",
                f"{name} must be less than {most}",
                f".{name}",
            )
            for name, most in (
                ("loadAverageFractionTarget", 2),
                ("memoryUsageFractionTarget", 1),
                ("memoryTotalFractionTarget", 1),
            )
        ),
        CrdRule(
            "!has(self.lfcWindowSizeMinutes) || !has(self.lfcMinWaitBeforeDownscaleMinutes) || "
            "self.lfcMinWaitBeforeDownscaleMinutes >= self.lfcWindowSizeMinutes || "
            "(has(self.lfcUseLargestWindow) && self.lfcUseLargestWindow)",
            "lfcMinWaitBeforeDownscaleMinutes must be at least lfcWindowSizeMinutes",
            ".lfcMinWaitBeforeDownscaleMinutes",
        ),
    ),
    "MachineStart": (
        CrdRule(f"has(self.kernel) || !{_is_empty('disks')}", "a kernel is required without disks"),
        CrdRule("has(self.kernel) || !has(self.initrd)", "initrd needs a kernel", ".initrd"),
        CrdRule("has(self.kernel) || !has(self.append) || self.append == ''", "append needs a kernel", ".append"),
    ),
    "MachineNic": (
        CrdRule(
            "(has(self.backend) && self.backend == 'tap') == has(self.interface)",
            "interface is required with backend tap, and not allowed with others",
        ),
    ),
    "VirtualMachineSpec": (
        CrdRule(
            "has(self.adopt) == has(oldSelf.adopt)",
            "start cannot become adopt, nor adopt start; delete the machine and create another",
        ),
        CrdRule("has(self.start) != has(self.adopt)", "exactly one of start and adopt is required"),
        CrdRule("!has(self.adopt) || has(self.nodeName)", "nodeName is required with adopt", ".nodeName"),
        CrdRule(f"!has(self.adopt) || {_is_empty('nics')}", "nics need start", ".nics"),
        CrdRule(f"!has(self.nics) || {_WARM} <= 1", "a machine can use only one warm setup", ".nics"),
        CrdRule(
            f"!has(self.start) || !has(self.start.pinned) || !self.start.pinned || (has(self.nics) && {_WARM} == 1)",
            "start.pinned needs a network card with backend warm",
        ),
        CrdRule("!has(self.adopt) || !has(self.pciSlots)", "pciSlots needs start", ".pciSlots"),
        CrdRule(
            "!has(self.pciSlots) || !has(self.claims) || size(self.claims) <= self.pciSlots",
            "pciSlots must be at least one for each claim",
            ".pciSlots",
        ),
        CrdRule(
            "!has(self.claims) || self.claims.all(name, self.claims.exists_one(other, other == name))",
            "each claim can be named only once",
            ".claims",
        ),
    ),
    "VfConfigSpec": (
        CrdRule("!has(self.mac) || self.mac != '00:00:00:00:00:00'", "must be a unicast MAC address", ".mac"),
        CrdRule(
            "!has(self.minTxRate) || !has(self.maxTxRate) || self.maxTxRate == 0 || self.minTxRate <= self.maxTxRate",
            "minTxRate must not be above maxTxRate",
        ),
    ),
}
"""By model."""
