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
    lifted_by: tuple[str, ...]
    """The kinds of changes by which it is lifted."""
    tells_example: bool
    """Whether a sentence gives the example: the words of others say it."""
    brief: str
    """The words without an expression; empty if they have none."""
    alone: str
    """What is wrong, without how many devices there are, in a shorter sentence; empty if there is none."""

    __hash__ = str.__hash__  # that of enums takes long

    def __new__(
        cls,
        code: str,
        words: str = "",
        advice: str = "",
        lifted_by: tuple[str, ...] = (),
        tells_example: bool = False,
        brief: str = "",
        alone: str = "",
    ) -> RuleCode:
        rule = str.__new__(cls, code)
        rule._value_ = code
        rule.words, rule.advice, rule.lifted_by = words, advice, lifted_by
        rule.tells_example, rule.brief, rule.alone = tells_example, brief, alone
        return rule

    NO_CLASS_OF_TYPE = (
        "noClassOfType",
        "are left out, as no class has deviceType {type!r}",
        "name another type, or create a class of it",
        ("class",),
        False,
        "",
        "no class has deviceType {type!r}",
    )
    CLASS_OF_OTHER_TYPE = (
        "classOfOtherType",
        "are left out, as class {device_class!r} is not of deviceType {type!r}",
        "name a class of that type",
        ("class",),
        False,
        "",
        "class {device_class!r} is not of deviceType {type!r}",
    )
    OTHER_DRIVER = ("otherDriver", "are not of driver {drivers}", "name another class", ("class",))
    CLASS_CONSTRAINTS = (
        "classConstraints",
        "fail {expression} of class {device_class}",
        "name another class",
        ("class",),
        False,
        "are not of class {device_class}",
    )
    ALL_CLASSES = ("allClasses", "fail the constraints of all classes of type {type}", "name another type", ("class",))
    CONSTRAINTS = (
        "constraints",
        "fail {expression}",
        "relax the constraints",
        ("constraint",),
        False,
        "fail the constraints",
    )
    UNDEFINED_RESOURCE = (
        "undefinedResource",
        "can never be allocated",
        "define it in the pool",
        ("undefinedResource",),
        True,
    )
    UNAVAILABLE = ("unavailable", "are unavailable", "repair or uncordon one", ("unavailable",), True)
    RESERVED = (
        "reserved",
        "are reserved for claims that name class {device_class}",
        "name that class",
        ("class",),
    )
    NO_ATTRIBUTE = ("noAttribute", "have no attribute {attribute}", "match another one", ("matchAttribute",))
    PART = ("part", "go only to claims that say {say} while whole ones are offered", "select a part in constraints")
    NOTHING_TO_SHARE = ("nothingToShare", "cannot be shared by {resources}", "remove the amount to get whole devices")
    POOL_STATE = (
        "poolState",
        "are of an {state} pool",
        "correct its slices",
        ("pool",),
        True,
        "",
        "the pool is {state} ({example})",
    )
    BINDING_CONDITIONS = (
        "bindingConditions",
        "have binding conditions, which need feature gate {feature}",
        "enable the gate",
        ("feature",),
    )
    CLASS_SELECTOR = (
        "classSelector",
        "fail a selector of class {device_class!r}",
        "name another class",
        ("class",),
        True,
        "are not of class {device_class}",
    )
    REQUEST_SELECTOR = (
        "requestSelector",
        "fail a selector of the request",
        "relax the selectors",
        ("selector",),
        True,
        "fail the selectors",
    )
    SELECTOR_FAILED = (
        "selectorFailed",
        "cannot be judged by a selector",
        "guard the selector, or correct the device",
        ("selector",),
        True,
    )
    CAPACITY = ("capacity", "lack the capacity", "ask for less capacity", ("capacity",), True)
    IN_USE = ("inUse", "are in use", "wait until one is released", ("device",))
    NODE_OPERATIONS = ("nodeOperations", "need {feature}, which is not supported", "select other devices")
    NODE_ALLOCATABLE = ("nodeAllocatable", "need {feature}, which is not supported", "select other devices")
    COUNTERS_OFF = (
        "countersOff",
        "draw on counters, which need feature gate {feature}",
        "enable the gate",
        ("feature",),
    )
    OVERDRAWN = ("overdrawn", "are of a pool with an overdrawn counter", "correct its slices", ("pool",), True)
    LABELLED_CLAIMS = (
        "labelledClaims",
        f"are only for claims with the label {ALLOCATOR_KEY}={DEVALLOC}",
        "give the claim that label",
    )
    TAINT = ("taint", "have a taint that is not tolerated", "tolerate the taint", ("taint",), True)
    CAPACITY_LEFT = (
        "capacityLeft",
        "have too little capacity left",
        "ask for less capacity, or wait until some is released",
        ("capacity",),
        True,
    )
    GROUP_DIFFERS = (
        "groupDiffers",
        "differ in {attribute} from the devices that members of the group hold",
        "let the group differ in it, or delete the claims that hold devices",
    )
    NODE_BARRED = (
        "nodeBarred",
        "are on nodes that it may not be on",
        "let it be on one of these nodes",
        ("node", "nodeRule"),
    )
    OTHER_VALUE = ("otherValue", "have another {attribute}", "publish devices with that value")


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


def rule_words(code: str, args: dict[str, str] | None, count: int, *, is_brief: bool = False) -> str:
    """What so many devices do that a rule leaves out, such as "is in use"; ``code`` and ``args``: as in JSON.
    ``is_brief``: without expressions."""
    rule = RuleCode(code)
    words = (is_brief and rule.brief) or rule.words
    return agree_verb(words.format(**(args or {})), count)


ARE_EXCLUDED = "are excluded, as parts of their card are taken"
"""Of devices without owner that match and cannot be allocated: others have what they need of their card."""
