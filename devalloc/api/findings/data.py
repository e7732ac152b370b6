"""Findings as data: causes, blockers, who reads them, and what a reader may see. All of it is JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from devalloc.api.owner_names import CLAIM, MACHINE, POD, Owner, is_object, owner_of

MAX_MESSAGE = 120
"""Characters of a sentence: what a terminal and a column show of it."""
MAX_AT_LENGTH = 1000
"""Characters of a sentence at length: a paragraph, which the tables of `devalloc explain` go on from."""
Fact = Mapping[str, Any]
"""A cause: ``code`` (a ``Cause``), and what its words need."""
MAX_LISTED = 8
"""Members, nodes, devices and holders that a cause lists; of more it has the number."""
HOLDERS = frozenset(("claim", "machine"))
"""Kinds of blockers that hold devices."""
_OWNERS = (CLAIM, "ResourceClaim", MACHINE, POD)
"""Kinds of owners that these words name."""


class Cause(StrEnum):
    """What stands in the way. The docstrings of the words below say what each needs."""

    NO_POOLS = "noPools"
    NO_DEVICES = "noDevices"
    NO_DRIVER = "noDriver"
    INVALID_POOL = "invalidPool"
    UNREACHED = "unreached"
    NO_MATCH = "noMatch"
    STEP = "step"
    PARTS = "parts"
    UNKNOWN_NAME = "unknownName"
    UNKNOWN_VALUE = "unknownValue"
    WRONG_TYPE = "wrongType"
    UNKNOWN_TYPE = "unknownType"
    ADMIN_TYPE = "adminType"
    MISPLACED = "misplaced"
    TOO_FEW = "tooFew"
    TOO_LITTLE = "tooLittle"
    TOO_MANY = "tooMany"
    COMPETITION = "competition"
    AMOUNTS = "amountsTogether"
    DIFFER = "differ"
    TOO_FEW_AGREE = "tooFewAgree"
    CONSTRAINTS = "constraints"
    EXCLUSIVE = "exclusive"
    PARTS_TAKEN = "partsTaken"
    APART = "apart"
    BOUND = "boundToNode"
    NODE_UNKNOWN = "unknownNode"
    GROUP = "group"
    MEMBERS = "members"
    OUTRANKED = "outranked"
    UNPUBLISHED = "unpublished"
    EXPRESSION_FAILED = "expressionFailed"
    CUT_SHORT = "cutShort"
    TEXT = "text"
    MEMBER_FAILS = "memberFails"
    MEMBERS_APART = "membersApart"
    HELD_DIFFER = "heldDiffer"
    SEVERAL_OWNERS = "severalOwners"
    OVER_COMMITTED = "overCommitted"
    OVER_DRAWN = "overDrawn"
    ROOM = "room"
    TIE = "tie"
    NO_NODE = "noNode"
    NODE_BARRED = "nodeBarred"
    OTHER_VALUE = "otherValue"
    NODE_UNSUITED = "nodeUnsuited"
    RESERVATION_STAYS = "reservationStays"


def fact(code: Cause, **content: Any) -> Fact:
    """A cause with what its words need, without what is None, False or an empty tuple; 0 stays."""
    given = {name: value for name, value in content.items() if value is not None and value is not False and value != ()}
    return {
        "code": code.value,
        **{name: [*value] if isinstance(value, tuple) else value for name, value in given.items()},
    }


def first_of(name: str, values: Sequence[Any], more: str = "more") -> dict[str, Any]:
    """Content of a cause: the first values under ``name``, and how many others there are under ``more``. Many claims
    and machines may be refused for the same long list."""
    rest = max(0, len(values) - MAX_LISTED)
    return {name: [*values[:MAX_LISTED]]} | ({more: rest} if rest else {})


def owner_ref(owner: Owner) -> dict[str, str]:
    """A claim or machine that a cause names; ``objectKind``: what has devices as a claim has, and is none."""
    kind = "machine" if owner.kind == MACHINE else "claim"
    other = {} if owner.kind in _OWNERS else {"objectKind": owner.kind}
    return {"kind": kind, "namespace": owner.namespace, "name": owner.name, **other}


def claim_ref(key: tuple[str, str]) -> dict[str, str]:
    """The same of an owner in the solver."""
    return owner_ref(owner_of(key))


def group_ref(label: str | None) -> dict[str, str | None]:
    """The group that a cause names; ``machine`` or ``pod``: whose it is, if it is a machine with its claims, or the
    claims of a pod."""
    if label is None or is_object(("", label)):
        return {"group": label}
    owner = owner_of(("", label))
    what = "pod" if owner.kind == POD else "machine"
    return {"group": f"of {what} {owner.name}", what: owner.name}


def member_ref(key: tuple[str, str]) -> dict[str, str]:
    """The same where the kind is another: ``title`` is there of a machine."""
    ref = claim_ref(key)
    kind = ref.pop("kind")
    return ref if kind == "claim" else {**ref, "title": kind}


def holder_of(ref: Mapping[str, Any]) -> dict[str, Any]:
    """The claim or machine of a ``member_ref``."""
    return {**ref, "kind": ref.get("title", "claim")}


def of_owner(edit: Mapping[str, Any]) -> dict[str, Any]:
    """An edit with the claim or machine whose spec it is; ``claim``: the owner in the solver."""
    namespace, _, name = edit.get("claim", "").partition("/")
    if is_object((namespace, name)):
        return dict(edit)
    ref = claim_ref((namespace, name))
    own = {field: value for field, value in edit.items() if field not in ("claim", "request")}
    place = f"{ref['namespace']}/{ref['name']}"
    return {**own, "machine": place} if ref["kind"] == "machine" else {**edit, "claim": place}


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a sentence."""

    namespace: str | None = None
    """of a tenant, who sees no name of another namespace; None: an admin, or the user of the library"""
    width: int | None = MAX_MESSAGE
    """of a sentence, in characters; None: at length"""


ADMIN = Reader()
AT_LENGTH = Reader(width=None)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a sentence is made of, whether of an answer of the solver or of a decision of the controller."""

    causes: Sequence[Fact]
    """the most telling first"""
    blockers: Sequence[Mapping[str, Any]] = ()
    """what would have to change: edits, and holders to release. All of them, and they suffice."""
    alternatives: Sequence[Mapping[str, Any]] = ()
    """edits of which each would do instead"""
    caveats: Sequence[str] = ()
    """what is not certain (``CAVEATS``)"""
    subject: str = ""
    """whose it is, as NAMESPACE/NAME: edits of its own spec do not name it"""

    @property
    def edits(self) -> list[Mapping[str, Any]]:
        """The blockers that are to be changed; the others hold something."""
        return [each for each in self.blockers if each["kind"] not in HOLDERS]

    @property
    def holders(self) -> list[Mapping[str, Any]]:
        """The blockers that hold something."""
        return [each for each in self.blockers if each["kind"] in HOLDERS]


CAVEATS = {
    "notSmallest": "fewer changes may suffice",
    "notEnough": "more may be needed",
    "othersUnknown": "other claims may block it too",
    "nothingLeft": "",
}
"""What is not certain of the blockers, and its words; ``nothingLeft``: they leave out all that is requested, so that no
sentence advises them."""


BEING_DELETED = "the claim is being deleted; apply it again when it is gone"


def text_fact(text: str) -> Fact:
    """A cause that is found before any search: what is wrong with a field, or what an expression exceeded."""
    return fact(Cause.TEXT, text=text)


def finding_of(answer: Mapping[str, Any]) -> Finding:
    """The finding of an answer of the solver as JSON. The message of one that has nothing else is its cause; any other
    is made of the parts, and may name what a tenant does not see."""
    has_parts = any(answer.get(part) for part in ("causes", "blockers", "alternatives"))
    causes = answer.get("causes") or ()
    if not has_parts and answer.get("message"):
        causes = [text_fact(answer["message"])]
    return Finding(
        causes,
        answer.get("blockers") or (),
        answer.get("alternatives") or (),
        answer.get("caveats") or (),
        f"{answer.get('namespace')}/{answer.get('name')}",
    )


def with_refs(content: Any, renamed: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Causes or blockers with each claim and machine in them as ``renamed`` says."""
    if isinstance(content, Mapping):
        shown = {name: with_refs(value, renamed) for name, value in content.items()}
        return renamed(shown) if shown.get("kind") in HOLDERS else shown
    return [with_refs(each, renamed) for each in content] if isinstance(content, list | tuple) else content


def visible(finding: Finding, reader: Reader) -> Finding:
    """What a reader may see of a finding: claims and machines of other namespaces have no name any more."""
    if reader.namespace is None:
        return finding

    def hidden(ref: Mapping[str, Any]) -> Mapping[str, Any]:
        is_own = ref.get("namespace") in (None, reader.namespace)
        return ref if is_own else {"kind": ref["kind"], "namespace": None, "name": None}

    return Finding(
        with_refs(finding.causes, hidden),
        with_refs(finding.blockers, hidden),
        with_refs(finding.alternatives, hidden),
        finding.caveats,
        finding.subject,
    )
