"""The classes, and which devices a request accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim, DeviceClaimDetail, DeviceClaimSpec
from devalloc.api.device_class import DeviceClass
from devalloc_solver.check.cel_results import CelResults
from devalloc_solver.check.pools import CheckedDevice

MAX_RULES = 4_096
"""Rules that a catalogue remembers; when there are more, all are forgotten."""
MAX_REMEMBERED = 10_000
"""Values of devices that one rule remembers; when there are more, all are forgotten."""

PART_ATTRIBUTES = frozenset({"function", "profile", "profileID", "vfIndex", "pfPciBusID", "mdevParent"})
"""Attributes that parts of devices alone have, and the one that says which a part is."""

_NUMBERS = count(1)


class ClassCatalogue:
    """All classes by name; two of one name are both invalid (S4a)."""

    def __init__(self, classes: Iterable[DeviceClass], verdicts: CelResults) -> None:
        classes = list(classes)
        times = Counter(each.metadata.name for each in classes)
        self._by_name = {each.metadata.name: each for each in classes if times[each.metadata.name] == 1}
        self._verdicts = verdicts
        self._rules: dict[tuple[object, ...], DetailRule] = {}

    def admin_classes(self) -> set[str]:
        return {name for name, each in self._by_name.items() if each.spec.admin_access}

    def is_admin(self, detail: DeviceClaimDetail) -> bool:
        """Whether the detail names an admin class (S14)."""
        named = self._by_name.get(detail.device_class or "")
        return named is not None and bool(named.spec.admin_access)

    def is_all_admin(self, claim: DeviceClaim) -> bool:
        return all(self.is_admin(detail) for instance in claim.spec.claims for detail in instance.alternatives)

    def flaw(self, spec: DeviceClaimSpec) -> str | None:
        """Why it can never be satisfied: a class that it names (S5) or an expression (S6), in any alternative (S16)."""
        for instance in spec.claims:
            for detail in instance.alternatives:
                if error := self._verdicts.compile_error(detail.constraints or ""):
                    return f"the expression {detail.constraints!r} is invalid: {error} (S6)"
                if not detail.device_class:
                    continue
                named = self._by_name.get(detail.device_class)
                if named is None:
                    return f"class {detail.device_class} does not exist (S5)"
                if error := self._verdicts.compile_error(named.spec.constraints or ""):
                    return f"class {detail.device_class} is invalid: {error} (S5)"
        return None

    def rule(self, detail: DeviceClaimDetail) -> DetailRule:
        """What the detail accepts: one rule for all details that ask the same of a device, in whatever claim."""
        key = detail.device_class, detail.device_type, detail.driver, detail.constraints, detail.value_restrictions
        rule = self._rules.get(key)
        if rule is None:
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            rule = self._rules[key] = DetailRule(self, detail)
        return rule

    def refusal(self, detail: DeviceClaimDetail, pooled: CheckedDevice) -> str | None:
        """Why the detail does not accept the device, other owners aside; None if it does.

        ``DetailRule`` remembers it. Raises budget.BudgetExceeded.
        """
        if pooled.undefined_resources:
            return f"requests {pooled.undefined_resources[0]}, which its pool does not define (S12)"
        if meta.UNAVAILABLE in pooled.attributes and not self.is_admin(detail):
            return f"is unavailable: {pooled.attributes[meta.UNAVAILABLE]} (S6a)"
        if detail.driver not in (None, pooled.pool.spec.driver):
            return f"is of driver {pooled.pool.spec.driver}, and not of {detail.driver}"
        only = pooled.attributes.get(meta.ONLY_CLASS) if detail.driver is None else None
        if only is not None and only != detail.device_class and not self.is_admin(detail):
            return f"can be allocated only through class {only}"
        if detail.device_class:
            named = self._by_name[detail.device_class]
            if detail.device_type and named.spec.device_type != detail.device_type:
                return f"cannot match: class {detail.device_class} is not of type {detail.device_type} (S5)"
            refusal = self._class_refusal(named, pooled)
        elif detail.device_type:
            refusal = self._type_refusal(detail.device_type, pooled)
        else:
            refusal = None
        if refusal is None and not self._verdicts.holds(detail.constraints or "", pooled.attributes):
            refusal = f"does not match {detail.constraints!r} (S6)"
        for each in detail.value_restrictions if refusal is None else ():
            if (value := pooled.attributes.get(each.attribute)) not in each.values:
                refusal = f"has {value!r} for {each.attribute}, not one of {sorted(map(str, each.values))}"
        return refusal

    def says_which(self, detail: DeviceClaimDetail) -> bool:
        """Whether its expression, or that of the class that it names, reads what tells parts of devices from whole
        ones (S6b)."""
        named = self._by_name.get(detail.device_class or "")
        for text in (detail.constraints or "", (named.spec.constraints or "") if named is not None else ""):
            read = self._verdicts.names_read(text)
            if read is None or not PART_ATTRIBUTES.isdisjoint(read):
                return True
        return any(each.attribute in PART_ATTRIBUTES for each in detail.value_restrictions)

    def names_read(self, detail: DeviceClaimDetail) -> tuple[str, ...] | None:
        """The attributes that decide whether the detail accepts a device of some driver; None for all."""
        texts = [detail.constraints or ""]
        for named in self._by_name.values():
            if named.metadata.name == detail.device_class or (
                not detail.device_class and named.spec.device_type == detail.device_type
            ):
                texts.append(named.spec.constraints or "")
        names = {meta.UNAVAILABLE, meta.ONLY_CLASS, *(each.attribute for each in detail.value_restrictions)}
        for text in texts:
            read = self._verdicts.names_read(text)
            if read is None:
                return None
            names.update(read)
        return tuple(sorted(names))

    def _class_refusal(self, named: DeviceClass, pooled: CheckedDevice) -> str | None:
        name, spec, driver = named.metadata.name, named.spec, pooled.pool.spec.driver
        if spec.driver and spec.driver != driver:
            return f"is of driver {driver}, and class {name} is of driver {spec.driver} (S5)"
        if not self._verdicts.holds(spec.constraints or "", pooled.attributes):
            return f"does not match {spec.constraints!r} of class {name} (S6)"
        return None

    def _type_refusal(self, device_type: str, pooled: CheckedDevice) -> str | None:
        for named in self._by_name.values():
            # An admin class is reached by its name only (S14); one with an invalid expression accepts nothing.
            reached = named.spec.device_type == device_type and not named.spec.admin_access
            if reached and self._class_refusal(named, pooled) is None:
                return None
        return f"is accepted by no class of type {device_type} (S5)"


class DetailRule:
    """What one detail accepts, found out once for all devices of a driver that are equal in what is read of them."""

    def __init__(self, catalogue: ClassCatalogue, detail: DeviceClaimDetail) -> None:
        self._catalogue = catalogue
        self._detail = detail
        self._names = catalogue.names_read(detail)
        self._refusals: dict[tuple[object, ...], str | None] = {}
        self.number = next(_NUMBERS)
        """what it leaves on devices that it accepts, see ``CheckedDevice.accepted_by``"""

    def refusal(self, pooled: CheckedDevice) -> str | None:
        """Why it does not accept the device, None when it does; see ``ClassCatalogue.refusal``."""
        if self._names is None or pooled.undefined_resources:
            return self._catalogue.refusal(self._detail, pooled)
        key = (pooled.pool.spec.driver, *map(pooled.attributes.get, self._names))
        refusal = self._refusals.get(key, "")
        if refusal == "":
            if len(self._refusals) >= MAX_REMEMBERED:
                self._refusals.clear()
            refusal = self._refusals[key] = self._catalogue.refusal(self._detail, pooled)
        if refusal is None:
            pooled.accepted_by = self.number
        return refusal
