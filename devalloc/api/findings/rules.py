"""Rules by which devices drop out of a funnel: their codes, words and advice, and what they are about."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc.api.findings.style import agree_verb


class RuleCode(StrEnum):
    """By which rule a request does not get a device: one row for each code.

    Words, advice and tables take what they say of a rule from here.
    """

    words: str
    """What the devices do that it leaves out, such as "are in use"; with the names of what they need in braces."""
    advice: str
    """What to do about them, if no change is known that suffices; empty if there is nothing to say."""
    tells_example: bool
    """Whether a sentence gives the example: those of selectors are expressions, which the claim has itself."""

    __hash__ = str.__hash__  # that of enums takes long

    def __new__(cls, code: str, words: str = "", advice: str = "", tells_example: bool = False) -> RuleCode:
        rule = str.__new__(cls, code)
        rule._value_ = code
        rule.words, rule.advice, rule.tells_example = words, advice, tells_example
        return rule

    NO_CLASS_OF_TYPE = (
        "noClassOfType",
        "are left out, as no class has deviceType {type!r}",
        "name another type, or create a class of it",
    )
    CLASS_OF_OTHER_TYPE = (
        "classOfOtherType",
        "are left out, as class {device_class!r} is not of deviceType {type!r}",
        "name a class of that type",
    )
    OTHER_DRIVER = ("otherDriver", "are not of driver {drivers}", "name another class")
    CLASS_CONSTRAINTS = ("classConstraints", "fail {expression} of class {device_class}", "name another class")
    ALL_CLASSES = ("allClasses", "fail the constraints of all classes of type {type}")
    CONSTRAINTS = ("constraints", "fail {expression}", "relax the constraints")
    UNDEFINED_RESOURCE = ("undefinedResource", "can never be allocated")
    UNAVAILABLE = ("unavailable", "are unavailable", "free or repair one")
    RESERVED = ("reserved", "are reserved for claims that name class {device_class}", "name that class")
    NO_ATTRIBUTE = ("noAttribute", "have no attribute {attribute}", "match another one")
    PART = ("part", "go only to claims that say {say} while whole ones are offered")
    NOTHING_TO_SHARE = ("nothingToShare", "have no shares of {resources}", "ask for an amount that devices have")
    POOL_STATE = ("poolState", "are of an {state} pool", "correct its slices", True)
    BINDING_CONDITIONS = (
        "bindingConditions",
        "have binding conditions, which need feature gate {feature}",
        "enable it",
    )
    CLASS_SELECTOR = ("classSelector", "fail a selector of class {device_class!r}", "name another class")
    REQUEST_SELECTOR = ("requestSelector", "fail a selector of the request", "relax the selectors")
    SELECTOR_FAILED = ("selectorFailed", "cannot be judged by a selector")
    CAPACITY = ("capacity", "lack the capacity", "ask for less", True)
    IN_USE = ("inUse", "are in use", "wait until one is released")
    NODE_OPERATIONS = ("nodeOperations", "need {feature}, which is not supported")
    NODE_ALLOCATABLE = ("nodeAllocatable", "need {feature}, which is not supported")
    COUNTERS_OFF = ("countersOff", "draw on counters, which need feature gate {feature}", "enable it")
    OVERDRAWN = ("overdrawn", "are of a pool with an overdrawn counter", "correct its slices", True)
    LABELLED_CLAIMS = (
        "labelledClaims",
        f"are only for claims with the label {ALLOCATOR_KEY}={DEVALLOC}",
        "give the claim that label",
    )
    TAINT = ("taint", "have a taint that is not tolerated", "tolerate it", True)
    CAPACITY_LEFT = ("capacityLeft", "have too little capacity left", "ask for less, or wait", True)
    GROUP_DIFFERS = (
        "groupDiffers",
        "differ in {attribute} from the devices that members of the group hold",
        "let the group differ in it, or delete the claims that hold devices",
    )
    NODE_BARRED = ("nodeBarred", "are on nodes that it may not be on")
    OTHER_VALUE = ("otherValue", "have another {attribute}")


class Rule(NamedTuple):
    """A rule, and what it is about."""

    code: RuleCode
    args: tuple[tuple[str, str], ...] = ()
    """names and texts that its words need"""

    @property
    def words(self) -> str:
        """What the devices do that it leaves out, such as "are in use"."""
        return self.code.words.format(**dict(self.args))

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code.value} | ({"args": dict(self.args)} if self.args else {})


def rule(code: RuleCode, **args: str) -> Rule:
    return Rule(code, tuple(args.items()))


def rule_words(code: str, args: dict[str, str] | None, count: int) -> str:
    """What so many devices do that a rule leaves out, such as "is in use"; ``code`` and ``args``: as in JSON."""
    return agree_verb(RuleCode(code).words.format(**(args or {})), count)


ARE_EXCLUDED = "are excluded, as parts of their card are taken"
"""Of devices without owner that match and cannot be allocated: others have what they need of their card."""
