"""CEL rules of the CRDs: what the models check and a schema cannot say.

Every list, map and text that a rule walks over is bounded, which keeps the rules within the API server's cost budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule and what it says to the author of an object that breaks it; ``field`` is relative to the model."""

    rule: str
    message: str
    field: str = ""


def _empty(name: str) -> str:
    return f"(!has(self.{name}) || size(self.{name}) == 0)"


def _same(name: str) -> str:
    """A text is what it was, where none is as good as an empty one."""
    return f"(has(self.{name}) ? self.{name} : '') == (has(oldSelf.{name}) ? oldSelf.{name} : '')"


def _is_whole(field: str, key: str) -> str:
    """Whether an amount of a map is a whole number however it is written (2000m, 1.0), which isInteger() does not see.

    The float says which number it can be, and the difference is exact. Beyond what a float tells apart all pass.
    """
    amount = f"quantity(string(self.{field}['{key}']))"
    floor = f"int({amount}.asApproximateFloat())"
    either = " || ".join(f"{amount}.sub({floor}{more}).compareTo(quantity('0')) == 0" for more in ("", " + 1"))
    return f"({amount}.isInteger() || {amount}.isGreaterThan(quantity('9007199254740992')) || {either})"


_WARM = "self.nics.filter(nic, has(nic.backend) && nic.backend == 'warm').size()"
_DETAIL_FIELDS = ("deviceType", "deviceClass", "constraints", "requests", "limits", "matchAttributes", "configs")
_NAMES = "self.{field}.all(name, size(name) > 0 && size(name) <= 253)"


def _names(field: str) -> Rule:
    return Rule(f"!has(self.{field}) || {_NAMES.format(field=field)}", "names have 1 to 253 characters", f".{field}")


_DETAIL_RULES = (
    _names("requests"),
    _names("limits"),
    *(
        Rule(
            f"!has(self.{field}) || !('count' in self.{field}) || !isQuantity(string(self.{field}['count'])) || "
            f"{_is_whole(field, 'count')}",
            "count must be a whole number",
            f".{field}",
        )
        for field in ("requests", "limits")
    ),
    Rule(
        "!has(self.limits) || !('count' in self.limits) || !isQuantity(string(self.limits['count'])) || "
        "quantity(string(self.limits['count'])).isGreaterThan(quantity('0'))",
        "count must be at least 1: an allocation has at least one device",
        ".limits",
    ),
    Rule(
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


def _about(names: Iterable[str], rule: str, message: str, field: str = "") -> Rule:
    """A rule about amounts; where one of them is none, that is told already."""
    none = " || ".join(f"(has(self.{name}) && !isQuantity(string(self.{name})))" for name in names)
    return Rule(f"{none} || ({rule})", message, field)


def _integer(name: str) -> str:
    """A whole amount as an int, -1 where it is none. Not asInteger(): that refuses 1.5Gi, as isInteger() does."""
    amount = _amount(name)
    near = f"int({amount}.asApproximateFloat())"
    is_near = f"{amount}.isLessThan(quantity('4Ei')) && {amount}.sub({near}).compareTo(quantity('0')) == 0"
    return f"({amount}.isInteger() ? {amount}.asInteger() : {is_near} ? {near} : -1)"


def _is_multiple(name: str, block: int) -> str:
    return f"{_integer(name)} % {block} == 0"


_BOUNDS = (
    _about(("min", "max"), f"{_amount('min')}.compareTo({_amount('max')}) <= 0", "max must not be below min", ".max"),
    _about(
        ("min", "max", "use"),
        f"!has(self.use) || ({_amount('min')}.compareTo({_amount('use')}) <= 0 && "
        f"{_amount('use')}.compareTo({_amount('max')}) <= 0)",
        "use must be between min and max",
        ".use",
    ),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "Attribute": (
        Rule(
            " + ".join(f"(has(self.{kind}Value) ? 1 : 0)" for kind in ("string", "int", "quantity", "semVer"))
            + " == 1",
            "must have exactly one of stringValue, intValue, quantityValue, semVerValue",
        ),
    ),
    "Device": (_names("requests"),),
    "DeviceClaimDetail": _DETAIL_RULES,
    "DeviceClaimInstance": (
        *_DETAIL_RULES,
        Rule(
            f"{_empty('oneOf')} || ({' && '.join(_empty(name) for name in _DETAIL_FIELDS)})",
            "must not stand next to other fields; move those into each alternative",
            ".oneOf",
        ),
    ),
    "DeviceStatus": (
        Rule(
            f"{_empty('deviceIP')} || {_empty('deviceIPs')} || "
            "(has(self.deviceIPs[0].ip) && self.deviceIPs[0].ip == self.deviceIP)",
            "deviceIPs[0] must equal deviceIP",
        ),
    ),
    "DevicePoolSpec": (
        Rule(
            f"{_same('nodeName')} && self.driver == oldSelf.driver",
            "a pool keeps its nodeName and its driver, for its devices are known by them; delete it and create another",
        ),
    ),
    "DeviceClaim": (
        Rule(
            "!has(oldSelf.status) || !has(oldSelf.status.allocations) || size(oldSelf.status.allocations) == 0 || "
            "self.spec == oldSelf.spec",
            "the spec of an allocated claim is fixed; release the claim first",
            ".spec",
        ),
    ),
    "CpuBounds": (
        *_BOUNDS,
        _about(("min",), f"{_amount('min')}.compareTo(quantity('10m')) >= 0", "min must be at least 10m", ".min"),
        _about(("max",), f"{_amount('max')}.compareTo(quantity('1024')) <= 0", "max must not be above 1024", ".max"),
    ),
    "MemoryBounds": (
        *_BOUNDS,
        *(
            _about(
                (name,),
                f"!has(self.{name}) || {_is_multiple(name, size * 2**20)}",
                f"{name} must be a multiple of {size}Mi",
                f".{name}",
            )
            for name, size in (("min", 2), ("max", 2), ("use", 2), ("slotSize", 128))
        ),
        Rule(
            f"({_METHOD} == 'dimm') == has(self.slotSize)",
            "slotSize is required with method dimm, and goes with no other",
        ),
        *(
            _about(
                ("min", "slotSize", name),
                f"!has(self.slotSize) || !has(self.{name}) || "
                f"({_integer(name)} - {_integer('min')}) % {_integer('slotSize')} == 0",
                f"{name} must be min and a multiple of slotSize more",
                f".{name}",
            )
            for name in ("max", "use")
        ),
        _about(
            ("min", "max", "slotSize"),
            f"!has(self.slotSize) || ({_integer('max')} - {_integer('min')}) / {_integer('slotSize')} <= 255",
            "max must be at most 255 times slotSize above min",
            ".max",
        ),
    ),
    "MachineScaling": (
        *(
            _about(
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
        Rule(
            "!has(self.lfcWindowSizeMinutes) || !has(self.lfcMinWaitBeforeDownscaleMinutes) || "
            "self.lfcMinWaitBeforeDownscaleMinutes >= self.lfcWindowSizeMinutes || "
            "(has(self.lfcUseLargestWindow) && self.lfcUseLargestWindow)",
            "lfcMinWaitBeforeDownscaleMinutes must be at least lfcWindowSizeMinutes",
            ".lfcMinWaitBeforeDownscaleMinutes",
        ),
    ),
    "MachineStart": (
        Rule(f"has(self.kernel) || !{_empty('disks')}", "a kernel is required where there are no disks"),
        Rule("has(self.kernel) || !has(self.initrd)", "initrd goes with a kernel", ".initrd"),
        Rule("has(self.kernel) || !has(self.append) || self.append == ''", "append goes with a kernel", ".append"),
    ),
    "MachineNic": (
        Rule(
            "(has(self.backend) && self.backend == 'tap') == has(self.interface)",
            "interface is required with backend tap, and goes with no other",
        ),
    ),
    "VirtualMachineSpec": (
        Rule(
            "has(self.adopt) == has(oldSelf.adopt)",
            "a machine stays what it is, started or adopted; delete it and create another",
        ),
        Rule("has(self.start) != has(self.adopt)", "a machine is either started or adopted: exactly one of both"),
        Rule("!has(self.adopt) || has(self.nodeName)", "nodeName is required with adopt", ".nodeName"),
        Rule(f"!has(self.adopt) || {_empty('nics')}", "nics go with start only", ".nics"),
        Rule(f"!has(self.nics) || {_WARM} <= 1", "a machine lives in one warm setup", ".nics"),
        Rule(
            f"!has(self.start) || !has(self.start.pinned) || !self.start.pinned || (has(self.nics) && {_WARM} == 1)",
            "start.pinned goes with a network card with backend warm only",
        ),
        Rule("!has(self.adopt) || !has(self.pciSlots)", "pciSlots goes with start only", ".pciSlots"),
        Rule(
            "!has(self.pciSlots) || !has(self.claims) || size(self.claims) <= self.pciSlots",
            "pciSlots must be at least one for each claim",
            ".pciSlots",
        ),
        Rule(
            "!has(self.claims) || self.claims.all(name, self.claims.exists_one(other, other == name))",
            "a claim can be named once",
            ".claims",
        ),
    ),
    "VfConfigSpec": (
        Rule("!has(self.mac) || self.mac != '00:00:00:00:00:00'", "must be a unicast MAC address", ".mac"),
        Rule(
            "!has(self.minTxRate) || !has(self.maxTxRate) || self.maxTxRate == 0 || self.minTxRate <= self.maxTxRate",
            "minTxRate must not be above maxTxRate",
        ),
    ),
}
"""By model."""
