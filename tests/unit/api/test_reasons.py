"""Codes are an interface: each has one row in the table and one in the guides, and none is ever renamed."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from devalloc.api.findings import CAVEATS, Cause, RuleCode
from devalloc.api.reasons import Reason, find_reason, is_transient_reason
from devalloc_solver.answer_types import BlockerKind
from tests.support.repository import REPO
from tools import reason_sites

RELEASED = {
    *("ClaimInvalid", "ClassNotFound", "ClassInvalid", "ConfigNotFound", "Deleting", "NoMatchingDevices"),
    *("NodeUnavailable", "NotEnoughDevices", "InsufficientCapacity", "MatchAttributesConflict", "SearchLimit"),
    *("PoolResourcesExhausted", "DevicesInUse", "LostToHigherPriority", "LostToCompetition", "GroupUnsatisfiable"),
    *("NoRoom", "NodesTooSmall", "QuotaExceeded", "AdminAccessDenied", "Refused", "SpecChanged", "StillPrepared"),
    *("NoSuitableNode", "SentBack", "LeftAside"),
    *("NoHostCapacity", "NodeNotServed", "NodeNotFound", "ClaimNotFound", "ClaimNotAllocated", "ClaimBeingDeleted"),
    *("ClaimReleased", "MachineInvalid"),
}


KINDS = ("DeviceClaims", "ResourceClaims")
PAGES = ("pods.md", "placement.md", "migration.md", "reasons.md")
"""The guides with tables of codes of claims and machines."""


def cells_by_code() -> dict[str, list[str]]:
    """The cells of each row of the guides' tables of codes of claims, after the code."""
    pages = [(REPO / "docs" / name).read_text() for name in PAGES]
    rows = [line.strip("|").split(" | ") for page in pages for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip("` "): [cell.strip() for cell in cells[1:]] for cells in rows if "|" not in cells[0]}


def test_released_codes_stay() -> None:
    assert {str(reason) for reason in Reason} >= RELEASED


def test_the_guides_list_each_code_with_the_meaning_and_the_advice_of_the_table() -> None:
    cells = cells_by_code()
    for reason in Reason:
        assert reason.meaning in cells[reason.value], reason
        assert reason.advice in (*cells[reason.value], ""), reason


def test_the_guides_list_no_code_that_the_table_lacks() -> None:
    page = (REPO / "docs" / "reasons.md").read_text()
    codes = page[page.index("## Codes of claims") : page.index("## What is in the way")]
    listed = {line.split("`")[1] for line in codes.splitlines() if line.startswith("| `")}
    for name, heading in (
        ("placement.md", "## Why a machine is not placed"),
        ("migration.md", "## Why a machine does not move"),
    ):
        waiting = (REPO / "docs" / name).read_text().partition(f"\n{heading}\n")[2]
        listed |= {line.split("`")[1] for line in waiting.splitlines() if line.startswith("| `")}
    on_devices = {"DeviceLost"}
    assert listed - on_devices == {reason.value for reason in Reason} - {
        "NoSuitableNode",
        "NotAdopted",
        "SentBack",
        "NoRoomForPod",
    }


def test_the_guide_explains_each_verdict() -> None:
    page = (REPO / "docs" / "reasons.md").read_text()
    explained = {reason for reason in Reason if reason.verdict}
    assert len(explained) >= 11
    assert [reason for reason in explained if f"| `{reason.verdict}` |" not in page] == []


OF_TIERS = (Reason.NOT_ENOUGH_DEVICES, Reason.INSUFFICIENT_CAPACITY, Reason.NODE_UNAVAILABLE)


class TestWhereACodeIsDecided:
    def test_is_on_the_page_for_developers(self) -> None:
        """``python -m tools.reason_sites`` writes it."""
        assert reason_sites.PAGE.read_text() == reason_sites.page()

    def test_is_known_of_each(self) -> None:
        assert reason_sites.reason_sites().keys() == {None, *Reason}

    def test_is_not_a_method_that_all_classes_of_a_dialect_replace(self) -> None:
        """ResourceClaims have it from the common explainer, except in calls for one node."""
        counted = reason_sites.Site("solver/devalloc_solver/explain/explainer.py", "Explainer.counted_reason", "")
        assert [kind for kind in KINDS if reason_sites.is_used(counted, kind)] == ["ResourceClaims"]

    def test_is_said_apart_of_what_chooses_among_codes_of_others(self) -> None:
        names = {site.name for site in reason_sites.reason_sites()[None]}
        orders = {f"{dialect}Relaxations._rules_and_requests" for dialect in ("DeviceClaim", "ResourceClaim")}
        assert {"RelaxationSet.why_impossible", "UnitRelaxations.node_rules_by_reason", *orders} <= names

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("code", OF_TIERS)
    def test_is_the_dialect_or_what_dialects_share_unless_the_search_is_cut_short(
        self, code: Reason, kind: str
    ) -> None:
        """Two files beside those that declare a rule for nodes."""
        sites = [*reason_sites.reason_sites()[code], *reason_sites.reason_sites()[None]]
        modules = {
            site.module.removeprefix("solver/devalloc_solver/")
            for site in sites
            if site.module.startswith("solver/") and kind in reason_sites.kinds_of(site.module)
            if not site.name.endswith(".counted_reason")
        }
        dialect = {"DeviceClaims": "device_claims", "ResourceClaims": "resource_k8s"}[kind]
        assert modules == {"explain/relaxations.py", f"dialects/{dialect}/relaxations.py"}

    def test_is_said_apart_for_each_dialect(self) -> None:
        page = reason_sites.page()
        claims, resource_claims = (page.partition(f"\n## {kind}\n")[2].partition("\n## ")[0] for kind in KINDS)
        assert "dialects/device_claims/" in claims
        assert "dialects/resource_k8s/" in resource_claims
        assert "dialects/resource_k8s/" not in claims
        assert "dialects/device_claims/" not in resource_claims
        for shared in ("explain/explainer.py", "pipeline/units.py", "pipeline/admission.py"):
            assert shared in claims
            assert shared in resource_claims

    @pytest.mark.parametrize(
        ("code", "names"),
        [
            ("def f(): return Reason.DELETING", ["f"]),
            ("def f(): yield Reason.DELETING, edits", ["f"]),
            ("class C:\n def f(self): self.g(reason=Reason.DELETING.value)", ["C.f"]),
            ("class C:\n a: Reason = Reason.DELETING", ["C"]),
            ("TABLE = (Rule('x', Reason.DELETING),)", ["TABLE"]),
            ("TABLE = {Reason.NO_ROOM: Reason.DELETING}", ["TABLE"]),
            ("TABLE = {Reason.DELETING: Reason.NO_ROOM}", []),
            ("SOME = {*OTHERS, Reason.DELETING, Reason.NO_ROOM.value}", []),
            ("def f(a): return a is Reason.DELETING or a in (Reason.DELETING, None)", []),
            ("def f(): return Reason.UNHEARD", []),
        ],
    )
    def test_is_found_where_code_gives_it_and_not_where_code_compares_it(self, code: str, names: list[str]) -> None:
        assert [name for name, _, codes in reason_sites.decided_in(code) if "DELETING" in codes] == names

    @pytest.mark.parametrize(
        ("code", "names"),
        [
            ("def f(a) -> Reason: return a.reason", ["f"]),
            ("class C:\n def f(self) -> Iterator[RelaxationTier]: yield self.reason, []", ["C.f"]),
            ("class C:\n def _f(self) -> Iterator[RelaxationTier]: yield self.reason, []", ["C._f"]),
            ("def _f(a) -> Reason: return a.reason", []),
            ("def f(a) -> str: return a.reason", []),
            ("def f(a) -> Reason: return Reason.DELETING if a else a.reason", ["f"]),
            ("def f(a) -> Reason: return Reason.DELETING if a else g(a)", []),
        ],
    )
    def test_is_any_where_code_gives_what_others_decide(self, code: str, names: list[str]) -> None:
        assert [name for name, _, codes in reason_sites.decided_in(code) if "" in codes] == names

    def test_is_described_wherever_it_is(self) -> None:
        sites = {site for each in reason_sites.reason_sites().values() for site in each}
        assert [site.name for site in sites if not site.summary or site.summary.startswith("``")] == []

    def test_is_what_decides_and_neither_what_words_it_nor_a_mark_of_a_cache(self) -> None:
        names = {code: [site.name for site in each] for code, each in reason_sites.reason_sites().items()}
        assert "_admit_in_order" in names[Reason.QUOTA_EXCEEDED]
        assert not {"_NOT_ASKED", "_NOT_THERE", "_quota_message"} & {name for each in names.values() for name in each}

    def test_is_said_once_for_codes_that_the_same_ones_give(self) -> None:
        assert "\n**DevicesInUse**, **LostToHigherPriority**\n" in reason_sites.page()

    def test_is_described_by_the_first_sentence_below_a_constant(self) -> None:
        code = 'TABLE = Reason.DELETING\n"""What it is. More."""'
        assert [summary for _, summary, _ in reason_sites.decided_in(code)] == ["What it is"]


def test_a_code_is_found_by_its_name_alone() -> None:
    assert find_reason("NoRoom") is Reason.NO_ROOM
    assert find_reason("Unheard") is None
    assert find_reason(None) is None


def test_of_the_fleet_are_the_codes_of_what_another_node_or_time_may_have() -> None:
    assert {reason.name for reason in Reason if reason.is_of_fleet} == {
        "DEVICES_IN_USE",
        "GROUP_UNSATISFIABLE",
        "INSUFFICIENT_CAPACITY",
        "MATCH_ATTRIBUTES_CONFLICT",
        "NODES_CORDONED",
        "NODES_UNSCHEDULABLE",
        "NODE_UNAVAILABLE",
        "NOT_ENOUGH_DEVICES",
        "NO_MATCHING_DEVICES",
        "POOL_RESOURCES_EXHAUSTED",
    }


def test_transient_are_the_codes_of_claims_that_others_of_their_batch_won_against() -> None:
    transient = {reason for reason in Reason if reason.is_transient}
    assert transient == {Reason.LOST_TO_HIGHER_PRIORITY, Reason.LOST_TO_COMPETITION}
    assert is_transient_reason("LostToCompetition")
    assert not is_transient_reason("DevicesInUse")
    assert not is_transient_reason("Unheard")


def test_each_cause_and_each_caveat_is_in_the_guide() -> None:
    guide = (REPO / "docs" / "reasons.md").read_text()
    causes = (REPO / "docs" / "causes.md").read_text()
    assert [cause.value for cause in Cause if f"`{cause}`" not in causes] == []
    listed = {
        code
        for line in causes.splitlines()
        if line.startswith("| `")
        for code in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    assert listed == {cause.value for cause in Cause}
    assert [caveat for caveat in CAVEATS if f"| `{caveat}` |" not in guide] == []


def test_each_rule_of_a_funnel_is_in_the_guide() -> None:
    guide = (REPO / "docs" / "reasons.md").read_text()
    funnel = guide[guide.index("## Reading the funnel") : guide.index("## Reasons again")]
    rows = [line.split(" | ")[0] for line in funnel.splitlines() if line.startswith("| `")]
    assert {code for row in rows for code in re.findall(r"`(\w+)`", row)} == {code.value for code in RuleCode}


def test_each_kind_of_blocker_is_in_the_guide() -> None:
    guide = (REPO / "docs" / "reasons.md").read_text()
    assert [kind for kind in get_args(BlockerKind) if f"`{kind}`" not in guide] == []
