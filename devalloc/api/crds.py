"""CustomResourceDefinitions, generated from the models.

Schemas are structural: no references, no unions except int-or-string, a type at every node. CEL rules cover what a
schema cannot express; columns define what `kubectl get` shows. Every list, map and text over which a rule iterates is
bounded, to keep the rules within the API server's cost budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api import meta
from devalloc.api.api_kind import ApiKind
from devalloc.api.conditions import ALLOCATED, DEFAULT_STATUS, READY, VALID
from devalloc.api.fields import PATTERN_MESSAGE
from devalloc.api.kinds import API_KINDS
from devalloc.api.reference import described_schema
from devalloc.api.yaml_reader import dump_yaml


@dataclass(frozen=True, slots=True)
class CrdRule:
    """A CEL rule and its message for objects that violate it; ``field`` is relative to the model."""

    rule: str
    message: str
    field: str = ""


def _is_empty(name: str, type_: str | None = "array") -> str:
    """As ``fields.is_empty``: only a text, list or map can be there and be empty, and only these have a size."""
    has_size = type_ in ("string", "array", "object")
    return f"(!has(self.{name}) || size(self.{name}) == 0)" if has_size else f"!has(self.{name})"


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


def _if_set(field: str, rule: CrdRule) -> CrdRule:
    """A rule for objects that have a field, whose name it begins with: no object without the field is refused by it."""
    return replace(rule, rule=f"!has(self.{field}) || {rule.rule}")


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
    "DeviceClaimInstance": _DETAIL_RULES,
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
        *(
            _if_set(
                "hugePages",
                _amount_rule(
                    (name,),
                    f"self.hugePages != '1Gi' || !has(self.{name}) || {_is_multiple(name, 2**30)}",
                    f"{name} must be a multiple of 1Gi with hugePages 1Gi",
                    f".{name}",
                ),
            )
            for name in ("min", "max", "use", "slotSize")
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
    "MachineDisk": (
        CrdRule(
            "!has(self.clone) || !has(self.readOnly) || !self.readOnly",
            "clone cannot be combined with readOnly",
            ".clone",
        ),
    ),
    "MachineFirmware": (
        CrdRule(
            "!has(self.secureBoot) || !self.secureBoot || (has(self.type) && self.type == 'uefi')",
            "secureBoot needs type uefi",
            ".secureBoot",
        ),
    ),
    "MachineStart": (
        CrdRule(
            "!has(self.firmware) || !has(self.firmware.secureBoot) || !self.firmware.secureBoot || !has(self.kernel)",
            "a kernel cannot be combined with firmware.secureBoot, which would not check its signature",
            ".kernel",
        ),
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
        CrdRule("!has(self.adopt) || !has(self.pciSlots)", "pciSlots needs start", ".pciSlots"),
        _if_set(
            "guestReports",
            CrdRule("!self.guestReports || !has(self.adopt)", "guestReports needs start", ".guestReports"),
        ),
        _if_set("memory.hugePages", CrdRule("!has(self.adopt)", "hugePages needs start", ".memory.hugePages")),
        _if_set(
            "memory.hugePages",
            CrdRule("!has(self.scaling)", "hugePages cannot be combined with scaling", ".memory.hugePages"),
        ),
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
    "VirtualMachineTemplate": (
        *(
            CrdRule(f"!has(self.spec.{name})", f"{name} cannot be in a template: it is of one machine", f".spec.{name}")
            for name in ("adopt", "scaling", "runner")
        ),
        CrdRule(
            "!has(self.spec.claims) || size(self.spec.claims) == 0",
            "claims cannot be in a template: only one machine can have the devices of a claim",
            ".spec.claims",
        ),
        CrdRule(
            "!has(self.spec.nics) || "
            "self.spec.nics.all(nic, !has(nic.mac) && (!has(nic.backend) || nic.backend != 'tap'))",
            "nics[].mac and backend tap cannot be in a template: only one machine can have them",
            ".spec.nics",
        ),
        CrdRule(
            "!has(self.spec.start) || !has(self.spec.start.disks) || "
            "self.spec.start.disks.all(disk, has(disk.clone) || (has(disk.readOnly) && disk.readOnly))",
            "start.disks[] must be readOnly or have clone in a template: only one machine can write a disk",
            ".spec.start.disks",
        ),
    ),
    "VirtualMachineReplicaSet": (
        CrdRule(
            "size(self.metadata.name) <= 57 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be a DNS label of at most 57 characters, for its machines have a number behind it",
        ),
    ),
    "VirtualMachineMigrationSpec": (
        CrdRule(
            f"self.vmName == oldSelf.vmName && {_is_unchanged('targetNode')}",
            "the spec of a migration cannot change; delete it and create another",
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
"""By model, besides those of ``ALONE``."""

ALONE = {"DeviceClaimInstance": "oneOf"}
"""By model: a field beside which each other must be empty. There is a rule for each of them, because one rule for all
would change with each new field, and a rule with another text counts as one that refuses what was accepted."""


def _rules(model: str, fields: Mapping[str, Any]) -> list[CrdRule]:
    """``fields``: the schemas of the model's fields."""
    rules = list(RULES.get(model, ()))
    if (alone := ALONE.get(model)) is not None:
        message = "cannot be combined with other fields; move those into each alternative"
        rules += [
            CrdRule(f"{_is_empty(name, schema.get('type'))} || {_is_empty(alone)}", message, f".{alone}")
            for name, schema in fields.items()
            if name != alone
        ]
    return rules


@dataclass(frozen=True, slots=True)
class CrdColumn:
    """``path`` is a JSON path; a ``wide`` column appears only with ``-o wide``."""

    heading: str
    path: str
    type: str = "string"
    wide: bool = False

    def definition(self) -> dict[str, Any]:
        """The column's definition in a CRD."""
        shown: dict[str, Any] = {"name": self.heading, "type": self.type, "jsonPath": self.path}
        return shown | ({"priority": 1} if self.wide else {})


def _annotation(name: str) -> str:
    """The path of an annotation; dots in its name are part of the name."""
    return ".metadata.annotations." + name.replace(".", r"\.")


def _condition(type_: str, field: str) -> str:
    """The path of a field of a condition."""
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE = CrdColumn("Age", ".metadata.creationTimestamp", "date")
COLUMNS: dict[str, tuple[CrdColumn, ...]] = {
    "DevicePool": (
        CrdColumn("Node", ".spec.nodeName"),
        CrdColumn("Driver", ".spec.driver"),
        CrdColumn("Available", ".status.availableDevices", "integer"),
        _AGE,
        CrdColumn("Node cordoned", _annotation(meta.CORDONED_NODE), wide=True),
        CrdColumn("Cordoned", _annotation(meta.CORDONED), wide=True),
    ),
    "DeviceClass": (
        CrdColumn("Driver", ".spec.driver"),
        CrdColumn("Type", ".spec.deviceType"),
        CrdColumn("Admin", ".spec.adminAccess", "boolean"),
        CrdColumn("Valid", _condition(VALID, "status")),
        _AGE,
        CrdColumn("Constraints", ".spec.constraints", wide=True),
        CrdColumn("Message", _condition(VALID, "message"), wide=True),
    ),
    "DeviceClaim": (
        CrdColumn("Class", ".spec.claims[0].deviceClass"),
        CrdColumn("Node", _annotation(meta.ALLOCATED_NODE)),
        CrdColumn("Devices", _annotation(meta.ALLOCATED_DEVICES)),
        CrdColumn("Reason", _condition(ALLOCATED, "reason")),
        _AGE,
        CrdColumn("Group", _annotation(meta.GROUP), wide=True),
        CrdColumn("Priority", _annotation(meta.PRIORITY), wide=True),
        CrdColumn("Pinned to", _annotation(meta.NODE), wide=True),
        CrdColumn("Prepared on", _annotation(meta.PREPARED_ON), wide=True),
        CrdColumn("Message", _condition(ALLOCATED, "message"), wide=True),
    ),
    "VirtualMachine": (
        CrdColumn("Node", ".status.nodeName"),
        CrdColumn("Phase", ".status.phase"),
        CrdColumn("CPUs", ".status.observed.cpus"),
        CrdColumn("Memory", ".status.observed.memory"),
        CrdColumn("Reason", ".status.reason"),
        _AGE,
        CrdColumn("Pinned to", ".spec.nodeName", wide=True),
        CrdColumn("Claims", ".spec.claims", wide=True),
        CrdColumn("Message", ".status.message", wide=True),
    ),
    "VirtualMachineReplicaSet": (
        CrdColumn("Desired", ".spec.replicas", "integer"),
        CrdColumn("Current", ".status.replicas", "integer"),
        CrdColumn("Ready", ".status.readyReplicas", "integer"),
        _AGE,
        CrdColumn("Message", _condition(READY, "message"), wide=True),
    ),
    "VirtualMachineMigration": (
        CrdColumn("Machine", ".spec.vmName"),
        CrdColumn("Phase", ".status.phase"),
        CrdColumn("From", ".status.sourceNode"),
        CrdColumn("To", ".status.targetNode"),
        CrdColumn("Reason", ".status.reason"),
        _AGE,
        CrdColumn("Remaining bytes", ".status.progress.remaining", "integer", wide=True),
        CrdColumn("Message", ".status.message", wide=True),
    ),
    "VfioConfig": (_AGE,),
    "VfConfig": (
        CrdColumn("MAC", ".spec.mac"),
        CrdColumn("VLAN", ".spec.vlan", "integer"),
        CrdColumn("Max Mbit/s", ".spec.maxTxRate", "integer"),
        _AGE,
    ),
    "VgpuConfig": (CrdColumn("Profile", ".spec.profile"), _AGE),
}
"""By kind; all others have the age only."""

SELECTABLE: dict[str, tuple[str, ...]] = {
    "DevicePool": (".spec.nodeName", ".spec.driver"),
    "DeviceClass": (".spec.driver", ".spec.deviceType"),
    "DeviceClaim": (".status.nodeName", ".status.reason"),
    "VirtualMachine": (".spec.nodeName", ".status.nodeName", ".status.phase"),
    "VirtualMachineMigration": (".spec.vmName", ".status.phase", ".status.sourceNode", ".status.targetNode"),
}
"""For ``kubectl get --field-selector``. It cannot select by fields in lists or annotations."""


SCALABLE = ("VirtualMachineReplicaSet",)
"""Kinds for ``kubectl scale`` and autoscalers."""

API_APPROVED = "unapproved, the device management API is a prototype"
"""API servers accept a CRD of a *.k8s.io group only with an annotation about its approval."""

_HEADER = "# Generated by `devalloc crds` from devalloc/api. Do not edit.\n"


LIST_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("DevicePoolSpec", "attributes"): ("name",),
    ("DevicePoolSpec", "resources"): ("name",),
    ("DevicePoolSpec", "devices"): ("name",),
    ("Device", "attributes"): ("name",),
    ("Device", "resources"): ("name",),
    ("DeviceAllocation", "allocations"): ("name",),
    ("DeviceStatus", "allocations"): ("name",),
    ("DeviceStatus", "conditions"): ("type",),
    ("DeviceClaimStatus", "deviceStatuses"): ("devicePoolName", "deviceName"),
    ("DeviceClaimStatus", "conditions"): ("type",),
    ("DeviceClassStatus", "conditions"): ("type",),
    ("MachineStart", "disks"): ("path",),
    ("VirtualMachineStatus", "devices"): ("claim", "pool", "device"),
    ("VirtualMachineStatus", "movedClaims"): ("name",),
    ("MachineMigrationState", "claims"): ("name",),
    ("VirtualMachineStatus", "conditions"): ("type",),
    ("VirtualMachineReplicaSetStatus", "conditions"): ("type",),
    ("VirtualMachineMigrationStatus", "conditions"): ("type",),
}
"""(model, field) of lists whose entries have a key; the models check the same."""


def render() -> dict[str, str]:
    """The CRDs as YAML text by file name, such as "devicepools.yaml"."""
    return {f"{kind.plural}.yaml": _HEADER + dump_yaml([definition(kind)]) for kind in API_KINDS.values()}


def definition(kind: ApiKind) -> dict[str, Any]:
    """The CRD of one kind."""
    name = f"{kind.plural}.{kind.group}"
    metadata: dict[str, Any] = {"name": name}
    if kind.group.endswith(".k8s.io"):
        metadata["annotations"] = {"api-approved.kubernetes.io": API_APPROVED}
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.singular,
        "categories": ["devalloc"],
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    version: dict[str, Any] = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema(kind)},
        "additionalPrinterColumns": [column.definition() for column in COLUMNS.get(kind.kind, (_AGE,))],
    }
    if kind.kind in SELECTABLE:
        version["selectableFields"] = [{"jsonPath": path} for path in SELECTABLE[kind.kind]]
    if kind.has_status:
        version["subresources"] = {"status": {}}
    if kind.kind in SCALABLE:
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }


# -- schemas ---------------------------------------------------------------------------------------------------------

_KEPT_KEYWORDS = (
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    PATTERN_MESSAGE,
)
_TEXT = {"type": "string"}


def _schema(kind: ApiKind) -> dict[str, Any]:
    generated = described_schema(kind.model)
    schema = _structural(generated, generated.get("$defs", {}))
    _add_pattern_messages(schema["properties"]["spec"])
    # the API server owns these three and refuses any details about them
    schema["properties"] |= {"apiVersion": _TEXT, "kind": _TEXT, "metadata": {"type": "object"}}
    schema["required"] = [name for name in schema.get("required", ()) if name not in ("apiVersion", "kind", "metadata")]
    _drop_pattern_messages(schema)
    if kind.kind in DEFAULT_STATUS:
        schema["properties"]["status"]["default"] = DEFAULT_STATUS[kind.kind]
    return {key: value for key, value in schema.items() if value != []}


_MANY, _MOST = "oneOf", "devices"
"""Lists with so many texts that a rule for each exceeds the API server's budget: for all texts but amounts, or all."""


def _add_pattern_messages(node: dict[str, Any], *, amounts_only: bool = False) -> None:
    """Replace patterns of texts by rules, so that errors are a sentence instead of a pattern.

    ``amounts_only``: only for amounts, because there can be too many texts for a rule each.
    """
    is_amount = "x-kubernetes-int-or-string" in node
    if PATTERN_MESSAGE in node and (is_amount or not amounts_only):
        pattern = node.pop("pattern")
        rule = _quantity_rule(node.get("minimum")) if is_amount else f"self.matches(r'{pattern}')"
        node["x-kubernetes-validations"] = [{"rule": rule, "message": node.pop(PATTERN_MESSAGE)}]
    for name, below in _child_nodes(node):
        if name != _MOST:
            _add_pattern_messages(below, amounts_only=amounts_only or name == _MANY)


def _quantity_rule(least: int | None) -> str:
    """A rule for quantities as the API server reads them; it differs from ours only at the ends of the range."""
    rule = "isQuantity(string(self))"
    if least is None:
        return rule
    return f"{rule} && quantity(string(self)).compareTo(quantity('0')) {'>' if least else '>='} 0"


def _drop_pattern_messages(node: dict[str, Any]) -> None:
    node.pop(PATTERN_MESSAGE, None)
    for _, below in _child_nodes(node):
        _drop_pattern_messages(below)


def _child_nodes(node: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The nodes of fields, with their names, or of entries."""
    children = [*node.get("properties", {}).items(), ("", node.get("items")), ("", node.get("additionalProperties"))]
    return [(name, one) for name, one in children if isinstance(one, dict)]


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """One node of a pydantic JSON schema as a structural schema."""
    if "$ref" in node:
        return _structural(definitions[node["$ref"].rpartition("/")[2]] | _with_description(node), definitions)
    options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        return _structural(options[0] | _with_description(node), definitions)
    result: dict[str, Any] = _with_description(node) | {key: node[key] for key in _KEPT_KEYWORDS if key in node}
    if options:
        result["anyOf"] = options
    if "const" in node:
        result["enum"] = [node["const"]]
    if result.get("type") == "integer":
        _integer(result)
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
        result["x-kubernetes-list-type"] = "atomic"
    if "properties" in node:
        _object(result, node, definitions)
    elif entries := _map_value_schema(node):
        result["additionalProperties"] = _structural(entries, definitions)
    elif node.get("type") == "object" and "title" not in node:
        result["x-kubernetes-preserve-unknown-fields"] = True
    return result


def _map_value_schema(node: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a map's values; pydantic puts it below the pattern of the keys, which only CEL can check."""
    by_pattern: dict[str, dict[str, Any]] = node.get("patternProperties", {})
    entries = next(iter(by_pattern.values()), node.get("additionalProperties"))
    return entries if isinstance(entries, dict) else None


def _with_description(node: dict[str, Any]) -> dict[str, Any]:
    """The description for `kubectl explain`: without numbers of rules, and with single backquotes."""
    if "description" not in node:
        return {}
    text = _RULE_NUMBERS.sub("", " ".join(node["description"].split()))
    return {"description": text.replace("``", "`")}


_RULE_NUMBERS = re.compile(r" \([STIP]\d+[^()]*\)")


def _integer(schema: dict[str, Any]) -> None:
    bounds = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    if bounds == (-(2**63), 2**63 - 1):
        schema.pop("minimum", None)
        schema.pop("maximum", None)
    schema["format"] = "int64"


def _object(result: dict[str, Any], node: dict[str, Any], definitions: dict[str, Any]) -> None:
    model = node["title"]
    result["properties"] = {name: _structural(field, definitions) for name, field in node["properties"].items()}
    for (owner, name), keys in LIST_KEYS.items():
        if owner == model:
            result["properties"][name] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    if rules := _rules(model, result["properties"]):
        result["x-kubernetes-validations"] = [
            {"rule": rule.rule, "message": rule.message} | ({"fieldPath": rule.field} if rule.field else {})
            for rule in rules
        ]
