"""Rules by which devices drop out of a funnel: codes and what they are about, and their words."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc.api.findings.style import agree_verb


class RuleCode(StrEnum):
    """By which rule a request does not get a device."""

    __hash__ = str.__hash__  # that of enums takes long

    NO_CLASS_OF_TYPE = "noClassOfType"
    CLASS_OF_OTHER_TYPE = "classOfOtherType"
    OTHER_DRIVER = "otherDriver"
    CLASS_CONSTRAINTS = "classConstraints"
    ALL_CLASSES = "allClasses"
    CONSTRAINTS = "constraints"
    UNDEFINED_RESOURCE = "undefinedResource"
    UNAVAILABLE = "unavailable"
    RESERVED = "reserved"
    NO_ATTRIBUTE = "noAttribute"
    PART = "part"
    NOTHING_TO_SHARE = "nothingToShare"
    POOL_STATE = "poolState"
    BINDING_CONDITIONS = "bindingConditions"
    CLASS_SELECTOR = "classSelector"
    REQUEST_SELECTOR = "requestSelector"
    SELECTOR_FAILED = "selectorFailed"
    CAPACITY = "capacity"
    IN_USE = "inUse"
    NODE_OPERATIONS = "nodeOperations"
    NODE_ALLOCATABLE = "nodeAllocatable"
    COUNTERS_OFF = "countersOff"
    OVERDRAWN = "overdrawn"
    LABELLED_CLAIMS = "labelledClaims"
    TAINT = "taint"
    CAPACITY_LEFT = "capacityLeft"
    GROUP_DIFFERS = "groupDiffers"
    NODE_BARRED = "nodeBarred"
    OTHER_VALUE = "otherValue"


class Rule(NamedTuple):
    """A rule, and what it is about."""

    code: RuleCode
    args: tuple[tuple[str, str], ...] = ()
    """names and texts that its words need"""

    @property
    def words(self) -> str:
        """What the devices do that it leaves out, such as "are in use"."""
        return RULES[self.code].format(**dict(self.args))

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code.value} | ({"args": dict(self.args)} if self.args else {})


def rule(code: RuleCode, **args: str) -> Rule:
    return Rule(code, tuple(args.items()))


def rule_words(code: str, args: dict[str, str] | None, count: int) -> str:
    """What so many devices do that a rule leaves out, such as "is in use"; ``code`` and ``args``: as in JSON."""
    return agree_verb(RULES[RuleCode(code)].format(**(args or {})), count)


ARE_EXCLUDED = "are excluded, as parts of their card are taken"
"""Of devices without owner that match and cannot be allocated: others have what they need of their card."""
RULES: dict[RuleCode, str] = {
    RuleCode.NO_CLASS_OF_TYPE: "are left out, as no class has deviceType {type!r}",
    RuleCode.CLASS_OF_OTHER_TYPE: "are left out, as class {device_class!r} is not of deviceType {type!r}",
    RuleCode.OTHER_DRIVER: "are not of driver {drivers}",
    RuleCode.CLASS_CONSTRAINTS: "fail {expression} of class {device_class}",
    RuleCode.ALL_CLASSES: "fail the constraints of all classes of type {type}",
    RuleCode.CONSTRAINTS: "fail {expression}",
    RuleCode.UNDEFINED_RESOURCE: "can never be allocated",
    RuleCode.UNAVAILABLE: "are unavailable",
    RuleCode.RESERVED: "are reserved for claims that name class {device_class}",
    RuleCode.NO_ATTRIBUTE: "have no attribute {attribute}",
    RuleCode.PART: "go only to claims that say {say} while whole ones are offered",
    RuleCode.NOTHING_TO_SHARE: "have no shares of {resources}",
    RuleCode.POOL_STATE: "are of an {state} pool",
    RuleCode.BINDING_CONDITIONS: "have binding conditions, which need feature gate {feature}",
    RuleCode.CLASS_SELECTOR: "fail a selector of class {device_class!r}",
    RuleCode.REQUEST_SELECTOR: "fail a selector of the request",
    RuleCode.SELECTOR_FAILED: "cannot be judged by a selector",
    RuleCode.CAPACITY: "lack the capacity",
    RuleCode.IN_USE: "are in use",
    RuleCode.NODE_OPERATIONS: "need {feature}, which is not supported",
    RuleCode.NODE_ALLOCATABLE: "need {feature}, which is not supported",
    RuleCode.COUNTERS_OFF: "draw on counters, which need feature gate {feature}",
    RuleCode.OVERDRAWN: "are of a pool with an overdrawn counter",
    RuleCode.LABELLED_CLAIMS: f"are only for claims with the label {ALLOCATOR_KEY}={DEVALLOC}",
    RuleCode.TAINT: "have a taint that is not tolerated",
    RuleCode.CAPACITY_LEFT: "have too little capacity left",
    RuleCode.GROUP_DIFFERS: "differ in {attribute} from the devices that members of the group hold",
    RuleCode.NODE_BARRED: "are on nodes that it may not be on",
    RuleCode.OTHER_VALUE: "have another {attribute}",
}
TELL_EXAMPLE = frozenset(
    (RuleCode.TAINT, RuleCode.CAPACITY, RuleCode.CAPACITY_LEFT, RuleCode.POOL_STATE, RuleCode.OVERDRAWN)
)
"""Rules of which a sentence gives the example: those of selectors are expressions, which the claim has itself."""
ADVICE: dict[str, str] = {
    RuleCode.NO_CLASS_OF_TYPE: "name another type, or create a class of it",
    RuleCode.CLASS_OF_OTHER_TYPE: "name a class of that type",
    RuleCode.OTHER_DRIVER: "name another class",
    RuleCode.CLASS_CONSTRAINTS: "name another class",
    RuleCode.CLASS_SELECTOR: "name another class",
    RuleCode.CONSTRAINTS: "relax the constraints",
    RuleCode.REQUEST_SELECTOR: "relax the selectors",
    RuleCode.UNAVAILABLE: "free or repair one",
    RuleCode.RESERVED: "name that class",
    RuleCode.NO_ATTRIBUTE: "match another one",
    RuleCode.NOTHING_TO_SHARE: "ask for an amount that devices have",
    RuleCode.POOL_STATE: "correct its slices",
    RuleCode.OVERDRAWN: "correct its slices",
    RuleCode.BINDING_CONDITIONS: "enable it",
    RuleCode.COUNTERS_OFF: "enable it",
    RuleCode.CAPACITY: "ask for less",
    RuleCode.CAPACITY_LEFT: "ask for less, or wait",
    RuleCode.IN_USE: "wait until one is released",
    RuleCode.LABELLED_CLAIMS: "give the claim that label",
    RuleCode.TAINT: "tolerate it",
    RuleCode.GROUP_DIFFERS: "let the group differ in it, or delete the claims that hold devices",
}
"""What to do about devices that a rule leaves out, if no change is known that suffices."""
