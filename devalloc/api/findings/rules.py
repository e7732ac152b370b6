"""Rules by which devices drop out of a funnel: their codes, words and advice, and what they are about."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc.api.findings.style import WHOLE, Style, agree_verb


class _Row(NamedTuple):
    """What words, advice and tables say of a rule."""

    topic: str
    """What it is about, in a word: for rules beside the one that a sentence is about."""
    words: str
    """What the devices do that it leaves out, such as "are in use"; with the names of what they need in braces."""
    advice: str = ""
    """What to do about them, if no change is known that suffices; empty if there is nothing to say."""
    lifted_by: tuple[str, ...] = ()
    """The kinds of changes by which it is lifted."""
    tells_example: bool = False
    """Whether a sentence gives the example: the words of others say it."""
    brief: str = ""
    """The words without an expression; empty if they have none."""
    alone: str = ""
    """What is wrong, without how many devices there are, in a shorter sentence; empty if there is none."""


_NO_ROW = _Row("", "")


class RuleCode(StrEnum):
    """By which rule a request does not get a device."""

    row: _Row

    __hash__ = str.__hash__  # that of enums takes long

    def __new__(cls, code: str, row: _Row = _NO_ROW) -> RuleCode:
        rule = str.__new__(cls, code)
        rule._value_, rule.row = code, row
        return rule

    NO_CLASS_OF_TYPE = (
        "noClassOfType",
        _Row(
            topic="type",
            words="are left out, as no class has deviceType '{type}'",
            advice="name another type, or create a class of it",
            lifted_by=("class",),
            alone="no class has deviceType '{type}'",
        ),
    )
    CLASS_OF_OTHER_TYPE = (
        "classOfOtherType",
        _Row(
            topic="type",
            words="are left out, as class '{device_class}' is not of deviceType '{type}'",
            advice="name a class of that type",
            lifted_by=("class",),
            alone="class '{device_class}' is not of deviceType '{type}'",
        ),
    )
    OTHER_DRIVER = (
        "otherDriver",
        _Row(topic="driver", words="are not of driver {drivers}", advice="name another class", lifted_by=("class",)),
    )
    CLASS_CONSTRAINTS = (
        "classConstraints",
        _Row(
            topic="class",
            words="fail {expression} of class {device_class}",
            advice="name another class",
            lifted_by=("class",),
            brief="are not of class {device_class}",
        ),
    )
    ALL_CLASSES = (
        "allClasses",
        _Row(
            topic="type",
            words="fail the constraints of all classes of type {type}",
            brief="are not of type {type}",
            advice="name another type",
            lifted_by=("class",),
        ),
    )
    CONSTRAINTS = (
        "constraints",
        _Row(
            topic="constraints",
            words="fail {expression}",
            advice="relax the constraints",
            lifted_by=("constraint",),
            brief="fail the constraints",
        ),
    )
    UNDEFINED_RESOURCE = (
        "undefinedResource",
        _Row(
            topic="resource",
            words="draw on a resource that is not defined",
            advice="define it in the pool",
            lifted_by=("undefinedResource",),
            tells_example=True,
        ),
    )
    UNAVAILABLE = (
        "unavailable",
        _Row(
            topic="state",
            words="are unavailable",
            advice="repair or uncordon one",
            lifted_by=("unavailable",),
            tells_example=True,
        ),
    )
    RESERVED = (
        "reserved",
        _Row(
            topic="class",
            words="are reserved for claims that name class {device_class}",
            advice="name that class",
            lifted_by=("class",),
        ),
    )
    NO_ATTRIBUTE = (
        "noAttribute",
        _Row(
            topic="attribute",
            words="have no attribute {attribute}",
            advice="match another one",
            lifted_by=("matchAttribute",),
        ),
    )
    PART = (
        "part",
        _Row(
            topic="part", words="are parts, which need {say} in the constraints", advice="select a part in constraints"
        ),
    )
    NOTHING_TO_SHARE = (
        "nothingToShare",
        _Row(topic="amount", words="offer no shares of {resources}", advice="remove the amount to get whole devices"),
    )
    POOL_STATE = (
        "poolState",
        _Row(
            topic="pool",
            words="are of an {state} pool",
            advice="ask who runs it",
            lifted_by=("pool",),
            tells_example=True,
            alone="the pool is {state} ({example})",
        ),
    )
    BINDING_CONDITIONS = (
        "bindingConditions",
        _Row(
            topic="feature",
            words="have binding conditions, which need feature gate {feature}",
            advice="enable the gate",
            lifted_by=("feature",),
        ),
    )
    CLASS_SELECTOR = (
        "classSelector",
        _Row(
            topic="class",
            words="fail a selector of class '{device_class}'",
            advice="name another class",
            lifted_by=("class",),
            tells_example=True,
            brief="are not of class {device_class}",
        ),
    )
    REQUEST_SELECTOR = (
        "requestSelector",
        _Row(
            topic="selector",
            words="fail a selector of the request",
            advice="relax the selectors",
            lifted_by=("selector",),
            tells_example=True,
            brief="fail the selectors",
        ),
    )
    SELECTOR_FAILED = (
        "selectorFailed",
        _Row(
            topic="selector",
            words="cause an error in a selector",
            advice="test in the selector first for what it reads",
            lifted_by=("selector",),
            tells_example=True,
        ),
    )
    CAPACITY = (
        "capacity",
        _Row(
            topic="capacity",
            words="cannot give the capacity",
            advice="ask for less capacity",
            lifted_by=("capacity",),
            tells_example=True,
        ),
    )
    IN_USE = (
        "inUse",
        _Row(topic="use", words="are in use", advice="wait until one is released", lifted_by=("device",)),
    )
    NODE_OPERATIONS = (
        "nodeOperations",
        _Row(topic="feature", words="need {feature}, which is not supported", advice="select other devices"),
    )
    NODE_ALLOCATABLE = (
        "nodeAllocatable",
        _Row(topic="feature", words="need {feature}, which is not supported", advice="select other devices"),
    )
    COUNTERS_OFF = (
        "countersOff",
        _Row(
            topic="feature",
            words="draw on counters, which need feature gate {feature}",
            advice="enable the gate",
            lifted_by=("feature",),
        ),
    )
    OVERDRAWN = (
        "overdrawn",
        _Row(
            topic="pool",
            words="are of a pool with an overdrawn counter",
            advice="ask who runs it",
            lifted_by=("pool",),
            tells_example=True,
        ),
    )
    LABELLED_CLAIMS = (
        "labelledClaims",
        _Row(
            topic="label",
            words=f"are only for claims with the label {ALLOCATOR_KEY}={DEVALLOC}",
            advice="give the claim that label",
        ),
    )
    TAINT = (
        "taint",
        _Row(
            topic="taint",
            words="have a taint that is not tolerated",
            advice="tolerate the taint",
            lifted_by=("taint",),
            tells_example=True,
        ),
    )
    CAPACITY_LEFT = (
        "capacityLeft",
        _Row(
            topic="capacity",
            words="have too little capacity left",
            advice="ask for less capacity, or wait until some is released",
            lifted_by=("capacity",),
            tells_example=True,
        ),
    )
    GROUP_DIFFERS = (
        "groupDiffers",
        _Row(
            topic="group",
            words="differ in {attribute} from the devices that members of the group hold",
            advice="let the group differ in it, or delete the claims that hold devices",
        ),
    )
    NODE_BARRED = (
        "nodeBarred",
        _Row(
            topic="node",
            words="are on nodes that it may not be on",
            brief="are on excluded nodes",
            advice="allow one (devalloc.io/excluded-nodes, or its pod's rules)",
            lifted_by=("node", "nodeRule"),
        ),
    )
    OTHER_VALUE = (
        "otherValue",
        _Row(topic="value", words="have another {attribute}", advice="publish devices with that value"),
    )


class Rule(NamedTuple):
    """A rule, and what it is about."""

    code: RuleCode
    args: tuple[tuple[str, str], ...] = ()
    """names and texts that its words need"""

    @property
    def words(self) -> str:
        """What the devices do that it leaves out, such as "are in use"."""
        return self.code.row.words.format(**dict(self.args))

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code.value} | ({"args": dict(self.args)} if self.args else {})


def rule(code: RuleCode, **args: str) -> Rule:
    return Rule(code, tuple(args.items()))


def rule_words(code: str, args: dict[str, str] | None, count: int, *, is_brief: bool = False) -> str:
    """What so many devices do that a rule leaves out, such as "is in use"; ``code`` and ``args``: as in JSON.
    ``is_brief``: without expressions."""
    row = RuleCode(code).row
    words = (is_brief and row.brief) or row.words
    shown = {name: Style(WHOLE).text(value) for name, value in (args or {}).items()}
    return agree_verb(words.format(**shown), count)


ARE_EXCLUDED = "are excluded, as parts of their card are taken"
"""Of devices without owner that match and cannot be allocated: others have what they need of their card."""
