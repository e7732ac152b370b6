"""The check of answers across claims: who may use a device beside whom, held devices and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.pool import DevicePool
from devalloc_solver.check import check
from tests.support.answer_builders import (
    answer,
    assert_refused,
    claim,
    device,
    device_class,
    echo,
    held_claim,
    pool,
    unallocated,
)

WATCH = device_class("watch", adminAccess=True)
MEMORY = {"requests": {"memory": "4Gi"}}
LEFT = "2026-01-01T00:00:00Z"

GPUS = pool(
    "p",
    device("g0", has={"memory": ("8Gi", "1Gi")}),
    device("g1", has={"memory": ("8Gi", "1Gi")}),
    device("g2"),
)


def judge(
    pools: DevicePool | Sequence[DevicePool], claims: Sequence[DeviceClaim], *answers: dict[str, Any]
) -> list[str]:
    """The verdict; claims that came in allocated are echoed."""
    echoes = [echo(each) for each in claims if each.is_allocated]
    return check([pools] if isinstance(pools, DevicePool) else pools, [WATCH], claims, [*echoes, *answers])


class TestWholeAndShared:
    """A whole device has one user; shares fit the capacity (S10, S11, S13). Held ones count too."""

    WHOLE = claim("whole")
    SHARE = claim("share", MEMORY)

    def test_two_claims_on_two_devices(self) -> None:
        assert judge(GPUS, [claim("a"), claim("b")], answer("a", "p/g0"), answer("b", "p/g1")) == []

    def test_two_whole_takers(self) -> None:
        violations = judge(GPUS, [claim("a"), claim("b")], answer("a", "p/g0"), answer("b", "p/g0"))
        assert violations == [
            "default/b: detail 0: device n1/p/g0 is used whole by default/a: detail 0 and whole here (S10)"
        ]

    def test_a_whole_taker_and_a_sharer(self) -> None:
        share = answer("share", ("p/g0", {"memory": "4Gi"}))
        violations = judge(GPUS, [self.WHOLE, self.SHARE], share, answer("whole", "p/g0"))
        assert_refused(violations, "used in shares by default/share: detail 0 and whole here (S10)")

    def test_two_details_of_one_claim(self) -> None:
        both = claim("a", {"requests": {"count": 1}}, {"requests": {"count": 1}})
        assert_refused(judge(GPUS, [both], answer("a", "p/g0", "p/g0", details="0 1")), "and whole here (S10)")

    def test_a_device_held_whole(self) -> None:
        held_whole = held_claim(claim("old", node="n1"), "p/g0")
        assert judge(GPUS, [held_whole, self.WHOLE], answer("whole", "p/g1")) == []
        assert_refused(judge(GPUS, [held_whole, self.WHOLE], answer("whole", "p/g0")), "used whole by default/old")
        share = answer("share", ("p/g0", {"memory": "4Gi"}))
        assert_refused(judge(GPUS, [held_whole, self.SHARE], share), "used whole by default/old and in shares here")

    @pytest.mark.parametrize(("amount", "right"), [("4Gi", True), ("5Gi", False)])
    def test_shares_beside_held_shares(self, amount: str, right: bool) -> None:
        old = held_claim(claim("old", MEMORY, node="n1"), ("p/g0", {"memory": "4Gi"}))
        new = claim("a", {"requests": {"memory": amount}})
        violations = judge(GPUS, [old, new], answer("a", ("p/g0", {"memory": amount})))
        if right:
            assert violations == []
        else:
            assert_refused(violations, "gives more memory than it has, shared with default/old (S11)")

    def test_shares_of_two_new_claims(self) -> None:
        big = claim("big", {"requests": {"memory": "5Gi"}})
        answers = [answer("share", ("p/g0", {"memory": "4Gi"})), answer("big", ("p/g0", {"memory": "5Gi"}))]
        assert_refused(judge(GPUS, [self.SHARE, big], *answers), "more memory than it has")

    def test_a_whole_taker_beside_held_shares(self) -> None:
        old = held_claim(claim("old", MEMORY, node="n1"), ("p/g0", {"memory": "4Gi"}))
        assert_refused(judge(GPUS, [old, self.WHOLE], answer("whole", "p/g0")), "used in shares by default/old")

    def test_more_held_than_there_is_means_nothing_left_and_no_error(self) -> None:
        old = [held_claim(claim(name, MEMORY, node="n1"), ("p/g0", {"memory": "6Gi"})) for name in ("x", "y")]
        assert judge(GPUS, [*old, self.SHARE], answer("share", ("p/g1", {"memory": "4Gi"}))) == []
        assert_refused(judge(GPUS, [*old, self.SHARE], answer("share", ("p/g0", {"memory": "4Gi"}))), "(S11)")
        twice = [held_claim(claim(name, node="n1"), "p/g0") for name in ("x", "y")]
        assert judge(GPUS, twice) == []


class TestHeld:
    """What claims came in with (S2, S18)."""

    WATCHED = claim(
        "watched", {"deviceClass": "watch", "requests": {"count": 1}}, {"requests": {"count": 1}}, node="n1"
    )
    NEW = claim("a")

    def test_what_an_admin_detail_has_is_free(self) -> None:
        old = held_claim(self.WATCHED, "p/g0", "p/g1", details=["0", "1"])
        assert judge(GPUS, [old, self.NEW], answer("a", "p/g0")) == []
        assert_refused(judge(GPUS, [old, self.NEW], answer("a", "p/g1")), "used whole by default/watched")

    @pytest.mark.parametrize("details", [None, ["0"], ["7", "1"], ["0.0", "1"]])
    def test_an_entry_whose_detail_is_not_known_counts(self, details: list[str] | None) -> None:
        old = held_claim(self.WATCHED, "p/g0", "p/g1", details=details)
        assert_refused(judge(GPUS, [old, self.NEW], answer("a", "p/g0")), "used whole by default/watched")

    def test_unless_all_details_are_admin(self) -> None:
        old = held_claim(claim("old", {"deviceClass": "watch"}, node="n1"), "p/g0")
        assert judge(GPUS, [old, self.NEW], answer("a", "p/g0")) == []

    def test_an_alternative_is_admin_or_not_by_its_own_class(self) -> None:
        either = claim("old", {"oneOf": [{"deviceClass": "watch"}, {"requests": {"count": 1}}]}, node="n1")
        assert judge(GPUS, [held_claim(either, "p/g0", details=["0.0"]), self.NEW], answer("a", "p/g0")) == []
        for other in ("0.1", "0"):
            assert judge(GPUS, [held_claim(either, "p/g0", details=[other]), self.NEW], answer("a", "p/g0")) != []

    @pytest.mark.parametrize(
        ("notes", "node"), [({"node": "n2"}, "n2"), ({"pin": "n2"}, "n2"), ({"node": "n1", "pin": "n2"}, "n1")]
    )
    def test_the_node_is_the_allocated_one_else_the_pin(self, notes: dict[str, str], node: str) -> None:
        fleet = [pool("p", device("g0"), node="n1"), pool("p", device("g0"), node="n2")]
        old = held_claim(claim("old", **notes), "p/g0")
        echoed = {**echo(old), "node": node}
        for target in ("n1", "n2"):
            violations = check(fleet, [], [old, self.NEW], [echoed, answer("a", "p/g0", node=target)])
            assert bool(violations) == (target == node)

    def test_without_a_node_the_pool_name_tells(self) -> None:
        assert judge(GPUS, [held_claim(claim("old"), "p/g0"), self.NEW], answer("a", "p/g0")) != []

    def test_an_ambiguous_name_counts_everywhere(self) -> None:
        fleet = [pool("p", device("g0"), node="n1"), pool("p", device("g0"), node="n2")]
        for node in ("n1", "n2"):
            assert judge(fleet, [held_claim(claim("old"), "p/g0"), self.NEW], answer("a", "p/g0", node=node)) != []

    @pytest.mark.parametrize("lost", ["p/g9", "gone/g0"])
    def test_lost_devices_hold_nothing_up(self, lost: str) -> None:
        assert judge(GPUS, [held_claim(claim("old", node="n1"), lost), self.NEW], answer("a", "p/g0")) == []

    def test_a_class_that_is_gone_holds_nothing_up(self) -> None:
        old = held_claim(claim("old", {"deviceClass": "gone"}, node="n1"), "p/g0")
        assert judge(GPUS, [old, self.NEW], answer("a", "p/g1")) == []

    def test_a_claim_that_is_being_deleted_still_holds(self) -> None:
        old = held_claim(claim("old", node="n1", deletionTimestamp=LEFT), "p/g0")
        assert_refused(judge(GPUS, [old, self.NEW], answer("a", "p/g0")), "used whole by default/old")

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"allocated": False}, "answered as not allocated (S18)"),
            ({"allocations": []}, "its allocations have changed (S18)"),
            ({"node": "n2"}, "allocated on node n1, and is answered on n2 (S18)"),
        ],
    )
    def test_an_allocated_claim_is_echoed_unchanged(self, change: dict[str, Any], says: str) -> None:
        old = held_claim(claim("old", MEMORY, node="n1"), ("p/g0", {"memory": "4Gi"}))
        assert check([GPUS], [], [old], [echo(old)]) == []
        assert_refused(check([GPUS], [], [old], [{**echo(old), **change}]), "default/old: came in allocated", says)

    @pytest.mark.parametrize(("notes", "nodes"), [({"pin": "n1"}, {"n1"}), ({}, {"n1", None})])
    def test_the_node_of_an_echo(self, notes: dict[str, str], nodes: set[str | None]) -> None:
        old = held_claim(claim("old", **notes), "p/g0")
        right = {node for node in ("n1", "n2", None) if not check([GPUS], [], [old], [{**echo(old), "node": node}])}
        assert right == nodes

    def test_an_echo_is_not_judged_by_rules_that_came_later(self) -> None:
        old = held_claim(claim("old", {"constraints": "false"}, node="n1"), "p/g0", "p/g1")
        assert check([GPUS], [], [old], [echo(old)]) == []


@dataclass(frozen=True)
class Invalid:
    """A claim that was left out."""

    name: str
    group: str | None = None
    node: str | None = None
    status: DeviceClaimStatus | None = None

    @property
    def key(self) -> tuple[str, str]:
        return "default", self.name


class TestLeftOut:
    """Claims that are invalid and hold devices all the same (S13, S16)."""

    STATUS = held_claim(claim("x"), "p/g0").status
    ECHO = echo(held_claim(claim("x"), "p/g0"))
    OTHER = held_claim(claim("x"), "p/g1").status

    def check(self, *answers: dict[str, Any]) -> list[str]:
        broken = Invalid("x", node="n1", status=self.STATUS)
        return check([GPUS], [], [claim("a")], answers, left_out=[broken])

    def test_what_they_hold_is_not_given_again(self) -> None:
        assert self.check(answer("a", "p/g1"), unallocated("x")) == []
        assert_refused(self.check(answer("a", "p/g0")), "used whole by default/x")

    def test_they_may_be_echoed_and_get_nothing_new(self) -> None:
        assert self.check(unallocated("a"), self.ECHO) == []
        assert_refused(self.check(unallocated("a"), answer("x", "p/g1")), "its allocations have changed")

    def test_two_of_one_name_both_hold_and_are_both_answered(self) -> None:
        twins = [Invalid("x", node="n1", status=status) for status in (self.STATUS, self.OTHER)]
        for taken, right in (("p/g0", False), ("p/g1", False), ("p/g2", True)):
            answers = [self.ECHO, unallocated("x"), answer("a", taken)]
            assert (check([GPUS], [], [claim("a")], answers, left_out=twins) == []) == right

    def test_what_has_nothing_gets_nothing(self) -> None:
        broken = Invalid("x", node="n1")
        violations = check([GPUS], [], [], [answer("x", "p/g0")], left_out=[broken])
        assert_refused(violations, "default/x: is allocated, and no valid claim has that name (S16)")

    def test_what_holds_its_devices_does_not_fail_its_group(self) -> None:
        member = Invalid("x", group="vm", node="n1", status=self.STATUS)
        answers = [self.ECHO, answer("a", "p/g1")]
        assert check([GPUS], [], [claim("a", group="vm")], answers, left_out=[member]) == []


class TestPoolResources:
    """What partitions of one card draw together (S12)."""

    CARD = pool(
        "p",
        device("whole", draws={"slices": "7"}),
        device("big", draws={"slices": "4"}, has={"memory": "8"}),
        device("small", draws={"slices": "3"}),
        device("odd", draws={"slices": "2500m"}),
        device("tiny", draws={"slices": "1", "copies": "1"}),
        device("free", draws={"slices": "0"}),
        has={"slices": "7500m", "copies": ("3", "2")},
    )

    @pytest.mark.parametrize(
        ("devices", "right"),
        [
            (["whole"], True),
            (["big", "small"], True),
            (["big", "odd"], True),  # 2.5 round up to 3 blocks
            (["big", "odd", "tiny"], False),
            (["whole", "tiny"], False),
            (["whole", "free"], True),
        ],
    )
    def test_what_fits_and_what_does_not(self, devices: list[str], right: bool) -> None:
        claims = [claim(name) for name in devices]
        for first in range(len(devices)):
            # Any one of them may have been there before.
            mixed = [
                held_claim(claim(n, node="n1"), f"p/{n}") if i == first else each
                for i, (n, each) in enumerate(zip(devices, claims, strict=True))
            ]
            for fleet in (claims, mixed):
                answers = [
                    answer(each.metadata.name, f"p/{each.metadata.name}") for each in fleet if not each.is_allocated
                ]
                violations = judge(self.CARD, fleet, *answers)
                if right:
                    assert violations == []
                else:
                    assert_refused(violations, "blocks of slices, and the pool has 7 (S12)")

    def test_capacity_is_whole_blocks_and_each_draw_rounds_up(self) -> None:
        pair = pool(
            "p", device("a", draws={"copies": "1"}), device("b", draws={"copies": "1"}), has={"copies": ("3", "2")}
        )
        claims = [claim("a"), claim("b")]
        violations = judge(pair, claims, answer("a", "p/a"), answer("b", "p/b"))
        assert_refused(violations, "draw 2 blocks of copies, and the pool has 1 (S12)")

    def test_a_device_counts_once_however_many_shares_it_has(self) -> None:
        shares = [claim(name, {"requests": {"memory": "2"}}) for name in ("a", "b", "c")]
        answers = [answer(each.metadata.name, ("p/big", {"memory": "2"})) for each in shares]
        small = held_claim(claim("old", node="n1"), "p/small")
        assert judge(self.CARD, [small, *shares], *answers) == []

    def test_admin_details_draw_nothing(self) -> None:
        watching = claim("w", {"deviceClass": "watch", "requests": {"count": 1}})
        answers = [answer("w", "p/whole"), answer("b", "p/big")]
        assert judge(self.CARD, [watching, claim("b")], *answers) == []

    def test_more_held_than_there_is_leaves_what_draws_nothing(self) -> None:
        old = [held_claim(claim(name, node="n1"), f"p/{name}") for name in ("whole", "big")]
        assert judge(self.CARD, [*old, claim("a")], answer("a", "p/free")) == []
        assert_refused(judge(self.CARD, [*old, claim("a")], answer("a", "p/tiny")), "(S12)")

    def test_a_new_share_of_a_device_in_use_overdraws_nothing(self) -> None:
        """It draws what it drew before: what is overdrawn was so already, or is by another new device."""
        share = {"requests": {"memory": "2"}}
        old = held_claim(claim("old", share, node="n1"), ("p/big", {"memory": "2"}))
        whole = held_claim(claim("whole", node="n1"), "p/whole")
        new = answer("new", ("p/big", {"memory": "2"}))
        assert judge(self.CARD, [old, whole, claim("new", share)], new) == []
        violations = judge(self.CARD, [old, whole, claim("new", share), claim("a")], new, answer("a", "p/tiny"))
        assert_refused(violations, "default/a", "(S12)")
        assert not any("default/new" in each for each in violations)


class TestCompatibility:
    """Devices of one pool carry one compatibility group (S12a)."""

    KEY = meta.COMPATIBILITY_GROUP
    CARD = pool(
        "p",
        device("a1", {KEY: "4Q"}, has={"memory": "8"}),
        device("a2", {KEY: "4Q"}),
        device("b1", {KEY: "8Q"}),
        device("unnamed", {KEY: ""}),
        device("plain"),
    )
    OTHER = pool("q", device("b2", {KEY: "8Q"}))

    @pytest.mark.parametrize(
        ("first", "second", "right"),
        [
            ("p/a1", "p/a2", True),
            ("p/a1", "p/plain", True),
            ("p/a1", "q/b2", True),
            ("p/a1", "p/b1", False),
            ("p/b1", "p/a1", False),
            ("p/a1", "p/unnamed", False),
            ("p/unnamed", "p/a1", False),
            ("p/unnamed", "p/plain", True),
        ],
    )
    def test_together(self, first: str, second: str, right: bool) -> None:
        fleet, new = [self.CARD, self.OTHER], claim("y")
        before = judge(fleet, [held_claim(claim("x", node="n1"), first), new], answer("y", second))
        both = judge(fleet, [claim("x"), new], answer("x", first), answer("y", second))
        if right:
            assert before == both == []
        else:
            assert_refused(before, "default/y", "is used beside", "(S12a)")
            assert both
            assert all("(S12a)" in each for each in both)

    def test_a_new_share_of_a_device_in_use_brings_no_group(self) -> None:
        """Two groups were in use before, which an admin may have given by hand."""
        share = {"requests": {"memory": "2"}}
        old = [held_claim(claim("old", share, node="n1"), ("p/a1", {"memory": "2"})),
               held_claim(claim("other", node="n1"), "p/b1")]  # fmt: skip
        assert judge(self.CARD, [*old, claim("new", share)], answer("new", ("p/a1", {"memory": "2"}))) == []

    def test_a_watching_claim_does_not_mind(self) -> None:
        watching = claim("w", {"deviceClass": "watch", "requests": {"count": 2}})
        assert judge(self.CARD, [watching], answer("w", "p/a1", "p/b1")) == []


class TestGroups:
    """Claims of one group share the node and are satisfied all or none (S7)."""

    FLEET = (
        pool("p", device("g0"), device("g1")),
        pool("q", device("h0"), node="n2"),
        pool("net", device("d0"), device("d1"), node=None),
    )
    A, B = claim("a", group="vm"), claim("b", group="vm")

    def judge(self, *args: Any, **keywords: Any) -> list[str]:
        claims = [each for each in args if isinstance(each, DeviceClaim)]
        answers = [each for each in args if isinstance(each, dict)]
        echoes = [echo(each) for each in claims if each.is_allocated]
        return check(self.FLEET, [WATCH], claims, [*echoes, *answers], **keywords)

    def test_all_on_one_node_or_none(self) -> None:
        assert self.judge(self.A, self.B, answer("a", "p/g0"), answer("b", "p/g1")) == []
        assert self.judge(self.A, self.B, answer("a", "p/g0"), answer("b", "net/d0")) == []
        assert self.judge(self.A, self.B, unallocated("a"), unallocated("b")) == []

    def test_on_two_nodes(self) -> None:
        violations = self.judge(self.A, self.B, answer("a", "p/g0"), answer("b", "q/h0", node="n2"))
        assert_refused(violations, "group default/vm: the members are not on one node: a on n1, b on n2 (S7)")

    def test_one_without_the_other(self) -> None:
        violations = self.judge(self.A, self.B, answer("a", "p/g0"), unallocated("b"))
        assert_refused(violations, "group default/vm: a is allocated without b (S7)")

    def test_groups_of_two_namespaces_are_two_groups(self) -> None:
        elsewhere = claim("b", group="vm", namespace="other")
        away = {**unallocated("b"), "namespace": "other"}
        assert self.judge(self.A, elsewhere, answer("a", "p/g0"), away) == []

    def test_an_invalid_member_fails_the_group(self) -> None:
        broken = claim("b", {"constraints": "device."}, group="vm")
        violations = self.judge(self.A, broken, answer("a", "p/g0"), unallocated("b"))
        assert_refused(violations, "a is allocated without b")
        assert_refused(self.judge(self.A, answer("a", "p/g0"), left_out=[Invalid("c", "vm")]), "a member is invalid")
        assert self.judge(self.A, unallocated("a"), left_out=[Invalid("c", "vm")]) == []

    @pytest.mark.parametrize("notes", [{"node": "n2"}, {"pin": "n2"}, {}, {"node": "n2", "deletionTimestamp": LEFT}])
    def test_an_allocated_member_counts_and_fixes_the_node(self, notes: dict[str, str]) -> None:
        old = held_claim(claim("b", group="vm", **notes), "q/h0")
        assert self.judge(old, self.A, answer("a", "net/d0", node="n2")) == []
        assert_refused(self.judge(old, self.A, answer("a", "p/g0")), "not on one node: a on n1, b on n2 (S7)")
        assert self.judge(old, self.A, unallocated("a")) == []

    @pytest.mark.parametrize("notes", [{"node": "n2"}, {"pin": "n2"}])
    def test_an_allocated_member_with_network_devices_fixes_the_node_it_was_given(self, notes: dict[str, str]) -> None:
        old = held_claim(claim("b", group="vm", **notes), "net/d0")
        assert self.judge(old, self.A, answer("a", "q/h0", node="n2")) == []
        assert_refused(self.judge(old, self.A, answer("a", "p/g0")), "not on one node: a on n1, b on n2 (S7)")

    def test_an_allocated_member_that_no_node_is_known_of_fixes_none(self) -> None:
        old = held_claim(claim("b", group="vm"), "net/d0")
        assert self.judge(old, self.A, answer("a", "p/g0")) == []

    def test_with_network_devices_only_a_group_may_be_nowhere(self) -> None:
        assert self.judge(self.A, self.B, answer("a", "net/d0", node=None), answer("b", "net/d1", node=None)) == []
        violations = self.judge(self.A, self.B, answer("a", "net/d0", node=None), answer("b", "p/g0"))
        assert_refused(violations, "not on one node: a on None, b on n1 (S7)")

    def test_a_pin_binds_all_members(self) -> None:
        pinned = claim("b", group="vm", pin="n2")
        violations = self.judge(self.A, pinned, answer("a", "p/g0"), answer("b", "q/h0", node="n2"))
        assert_refused(violations, "not on one node")
        assert self.judge(self.A, pinned, answer("a", "net/d0", node="n2"), answer("b", "q/h0", node="n2")) == []

    def test_a_group_does_not_wait_for_a_member_that_is_being_deleted(self) -> None:
        leaving = claim("b", group="vm", deletionTimestamp=LEFT)
        assert self.judge(self.A, leaving, answer("a", "p/g0"), unallocated("b")) == []

    def test_the_node_exists(self) -> None:
        right = [answer("a", "net/d0", node="n1"), answer("b", "net/d1", node="n1")]
        assert self.judge(self.A, self.B, *right) == []
        wrong = [answer("a", "net/d0", node="n9"), answer("b", "net/d1", node="n9")]
        assert all("on node n9, which does not exist (S7)" in each for each in self.judge(self.A, self.B, *wrong))
        assert self.judge(self.A, self.B, *wrong)
