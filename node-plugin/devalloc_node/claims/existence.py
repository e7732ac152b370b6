"""Check whether prepared claims still exist in the store or cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc_node.claims.journal_content import grant_of
from devalloc_node.errors import Denied, Failed
from devalloc_node.journal import ClaimRecord, ClaimState
from devalloc_node.journal.protocol import JournalReader
from devalloc_node.model.grant import Grants


@dataclass(slots=True)
class ClaimExistence:
    """Prepared claims that do not exist, or of which that is unknown; each is in one list at most."""

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
        gone = {record.ref.uid: "it was deleted but is still prepared" for record in self.gone}
        return self.strange | gone | {record.ref.uid: why for record, why in self.not_served}


def check_existence(journal: JournalReader, grants: Mapping[str, Grants]) -> ClaimExistence:
    """``grants``: by kind of claim. Raises NodeError where of any claim it cannot be told."""
    existence = ClaimExistence()
    prepared = [record for record in journal.claims() if record.state is ClaimState.PREPARED]
    identities = {kind: grants[kind].identity() for kind in {record.kind for record in prepared} & grants.keys()}
    for record in prepared:
        kind, uid = record.kind, record.ref.uid
        if kind not in grants:
            served = ", ".join(sorted(grants))
            existence.not_served.append(
                (record, f"it is still prepared as a {kind}, but this node now serves {served}s")
            )
            continue
        is_gone = grants[kind].is_gone(record.ref)
        identity, source = identities[kind], record.grant.get("source")
        if identity == source:
            existence.gone += [record] if is_gone else []
            continue
        if is_gone or not _holds_the_same(record, grants[kind]):
            existence.strange[uid] = f"it was prepared from {source}, and is still prepared"
        existence.moved = existence.moved or Failed(
            "StoreMoved",
            f"claim {record.ref} was prepared from {source}, but {kind}s now come from {identity}. If this is "
            f"intended, unprepare the claims of {source}",
        )
    return existence


def _holds_the_same(record: ClaimRecord, grants: Grants) -> bool:
    """Whether a claim that exists holds what it was prepared with. Raises Failed where that cannot be told."""
    try:
        return grants.look(record.ref).identities() == grant_of(record.ref, record.grant).identities()
    except Denied:  # it holds nothing, or nothing here
        return False
