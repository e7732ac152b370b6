"""Whether prepared claims are known where claims come from now: a store, a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc_node.claims.content import grant_of
from devalloc_node.errors import Denied, Failed
from devalloc_node.grant import Grants
from devalloc_node.journal import ClaimRecord, ClaimState
from devalloc_node.journal.protocol import Reader


@dataclass(slots=True)
class Whereabouts:
    """Prepared claims that are not, or nobody can say it of; each is in one list at most."""

    gone: list[ClaimRecord] = field(default_factory=list)
    """Of here, and gone."""
    strange: dict[str, str] = field(default_factory=dict)
    """Of elsewhere, and not known here: by UID, why."""
    not_served: list[tuple[ClaimRecord, str]] = field(default_factory=list)
    """Of a kind that this node does not serve, and why."""
    moved: Failed | None = None
    """Said where a claim is of another store or cluster; this one may know it all the same, with the same devices, as
    one that was restored does."""

    @property
    def unknown(self) -> dict[str, str]:
        """All of them: by UID, why."""
        gone = {record.ref.uid: "it is gone, and still prepared" for record in self.gone}
        return self.strange | gone | {record.ref.uid: why for record, why in self.not_served}


def whereabouts(journal: Reader, grants: Mapping[str, Grants]) -> Whereabouts:
    """``grants``: by kind of claim. Raises NodeError where of any claim it cannot be told."""
    found = Whereabouts()
    prepared = [record for record in journal.claims() if record.state is ClaimState.PREPARED]
    identities = {kind: grants[kind].identity() for kind in {record.kind for record in prepared} & grants.keys()}
    for record in prepared:
        kind, uid = record.kind, record.ref.uid
        if kind not in grants:
            served = ", ".join(sorted(grants))
            found.not_served.append((record, f"it is still prepared as a {kind}, and this node serves {served}s now"))
            continue
        is_gone = grants[kind].is_gone(record.ref)
        identity, source = identities[kind], record.grant.get("source")
        if identity == source:
            found.gone += [record] if is_gone else []
            continue
        if is_gone or not _holds_the_same(record, grants[kind]):
            found.strange[uid] = f"it was prepared from {source}, and still is"
        found.moved = found.moved or Failed(
            "StoreMoved",
            f"claim {record.ref} was prepared from {source}, and {kind}s come from {identity} now. If that is meant, "
            "unprepare what was prepared from there",
        )
    return found


def _holds_the_same(record: ClaimRecord, grants: Grants) -> bool:
    """Whether a claim that exists holds what it was prepared with. Raises Failed where that cannot be told."""
    try:
        return grants.look(record.ref).identities() == grant_of(record.ref, record.grant).identities()
    except Denied:  # it holds nothing, or nothing here
        return False
