"""After crashes and reboots, and now and then: what is half done is undone, and only what is surely gone is removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.inventory.sysfs import Tree
from devalloc_node.claims import PrepareOptions
from devalloc_node.claims.claim_files import FileKind, Rendered
from devalloc_node.claims.cleanup import Reconciler
from devalloc_node.claims.journal_content import orphaned_devices
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.files import Files
from devalloc_node.model.step import Step, Value
from tests.support import pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.toy_host import BOOT, SLOTS, EngineBench, ToyAttachment

GRACE = 100.0


@pytest.fixture
def bench(tmp_path: Path) -> EngineBench:
    return EngineBench(tmp_path / "node", options=PrepareOptions(grace_seconds=GRACE, removals=2))


def gone(bench: EngineBench, *uids: str) -> None:
    for uid in uids:
        del bench.grants.grants[uid]


class TestGone:
    def test_a_claim_that_is_gone_is_unprepared_when_the_grace_period_is_over(self, bench: EngineBench) -> None:
        stays, goes = bench.add("a/slot-0"), bench.add("a/slot-1")
        bench.claims.prepare(stays)
        bench.claims.prepare(goes)
        bench.reconciler.reconcile()
        gone(bench, goes.uid)
        bench.now = 1000.0
        assert bench.reconciler.reconcile().waiting == [
            "claim default/claim-uid-1 was deleted; it is unprepared in 100 s unless it reappears"
        ]
        bench.now += GRACE - 1
        assert bench.reconciler.reconcile().removed == []
        bench.now += 1
        assert bench.reconciler.reconcile().removed == ["claim default/claim-uid-1 (prepared) is undone"]
        assert [prepared.ref for prepared in bench.claims.prepared()] == [stays]
        assert bench.reconciler.reconcile() == type(bench.reconciler.reconcile())()

    def test_one_that_comes_back_begins_its_grace_anew(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        grant = bench.grants.grants.pop(ref.uid)
        bench.reconciler.reconcile()
        bench.now += GRACE
        bench.grants.grants[ref.uid] = grant
        assert bench.reconciler.reconcile().waiting == []
        gone(bench, ref.uid)
        assert bench.reconciler.reconcile().removed == []

    def test_no_pass_removes_many(self, bench: EngineBench) -> None:
        refs = [bench.add(f"a/slot-{number}") for number in range(SLOTS)]
        for ref in refs:
            bench.claims.prepare(ref)
        gone(bench, *(ref.uid for ref in refs))
        bench.reconciler.reconcile()
        bench.now = GRACE
        assert [len(bench.reconciler.reconcile().removed) for _ in range(3)] == [2, 2, 0]
        assert bench.is_initial()

    def test_one_error_and_nothing_is_taken_for_gone(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        gone(bench, ref.uid)
        bench.reconciler.reconcile()
        bench.now = GRACE
        bench.grants.fails = Failed("StoreUnavailable", "no answer")
        report = bench.reconciler.reconcile()
        assert report.removed == []
        assert "some could not be looked up: no answer" in report.halted
        assert bench.reconciler.gone.keys() == {ref.uid}, "what it held is not offered again because the store is away"
        # What happened meanwhile is unknown: the grace period begins anew.
        bench.grants.fails = None
        bench.now += 1
        assert bench.reconciler.reconcile().removed == []

    def test_another_cluster_says_nothing_about_the_claims_of_this_one(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.reconciler.reconcile()
        gone(bench, ref.uid)
        bench.grants.cluster = "cluster-2"
        for _ in range(3):
            bench.now += GRACE
            report = bench.reconciler.reconcile()
            assert report.removed == []
            assert "was prepared from cluster-1, but DeviceClaims now come from cluster-2" in report.halted
        bench.claims.unprepare(ref)
        assert bench.host.state == {}

    def test_the_cluster_is_known_from_the_first_claim_on_also_after_a_restart(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.grants.cluster = "cluster-2"
        bench.grants.grants.clear()
        bench.restart()
        for _ in range(3):
            bench.now += GRACE
            assert "was prepared from cluster-1" in bench.reconciler.reconcile().halted
        assert bench.claims.prepared()

    def test_a_device_in_use_stays(self, tmp_path: Path) -> None:
        users = {"slot-0": "qemu (17)"}
        bench = EngineBench(tmp_path, extra={"in_use": lambda device: users.get(device.device)})
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        gone(bench, ref.uid)
        bench.reconciler.reconcile()
        bench.now = bench.options.grace_seconds
        (text,) = bench.reconciler.reconcile().waiting
        assert "qemu (17) still has device a/slot-0 open" in text
        assert bench.host.state["a/0/driver"] == "vfio"
        assert bench.claims.prepared()


class TestRecovery:
    def test_what_a_crash_left_of_preparing_is_undone(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0", "b/slot-0")

        def die(target: str, value: object) -> None:
            if target == "b/0/driver":
                raise KeyboardInterrupt

        bench.host.refuse = die
        with pytest.raises(KeyboardInterrupt):
            bench.claims.prepare(ref)
        bench.host.refuse = lambda target, value: None
        assert bench.host.state["a/0/driver"] == "vfio"
        bench.restart()
        assert bench.is_initial()

    def test_a_claim_under_another_lock_is_left_alone(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.journal.begin(ref, "DeviceClaim", {"kind": "DeviceClaim", "devices": []}, {"slot/a/0": "a/slot-0"})
        with bench.claims.locks.claim(ref.uid, Deadline.after(1), "prepare"):
            assert bench.reconciler.reconcile() == type(bench.reconciler.recover())()
            assert bench.journal.claim(ref.uid) is not None
        bench.reconciler.reconcile()
        assert bench.journal.claim(ref.uid) is None

    def test_a_claim_that_counts_as_held_and_is_not_is_let_go(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.grants.marked[ref.uid] = ref
        bench.reconciler.reconcile()
        assert bench.grants.marked == {}

    def test_a_store_that_is_down_does_not_keep_devices_from_being_put_back(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.grants.fails = Failed("StoreUnavailable", "no answer")
        with pytest.raises(Failed):
            bench.claims.unprepare(ref)
        assert bench.host.state == {}
        bench.grants.fails = None
        bench.claims.unprepare(ref)
        assert bench.is_initial()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return tmp_path / "cdi/spec.json"


@pytest.fixture
def with_files(tmp_path: Path, spec: Path) -> EngineBench:
    """A bench whose claims have a file each, the same for all."""

    class Host:
        files = Files((str(tmp_path / "cdi"),))
        put_file = files.put
        remove_file = files.remove

    return EngineBench(
        tmp_path / "node",
        extra={
            "render": {"DeviceClaim": [lambda grant, devices: Rendered({str(spec): b"{}"}, {})]},
            "kinds": {"file": FileKind(Host())},  # type: ignore[arg-type]
        },
    )


class TestFiles:
    def test_removed_files_are_written_again(self, with_files: EngineBench, spec: Path) -> None:
        """Container runtimes would not find the devices of a pod that is to start again: ``/run/cdi`` was emptied."""
        ref = with_files.add("a/slot-0")
        with_files.claims.prepare(ref)
        assert with_files.reconciler.reconcile().finished == []
        for damaged in (spec.unlink, lambda: spec.write_text("")):
            damaged()
            assert with_files.reconciler.reconcile().finished == [f"restored {spec} of claim {ref}"]
            assert spec.read_text() == "{}"
        with_files.claims.unprepare(ref)
        with_files.reconciler.reconcile()
        assert not spec.exists()

    def test_so_is_what_was_written_to_a_folder_that_is_another_one_now(
        self, with_files: EngineBench, spec: Path
    ) -> None:
        """The plugin was started with another ``--cdi-dir``: what it wrote to the former one it still removes there."""

        class Host:
            files = Files((str(spec.parent.parent / "cdi-now"),))
            put_file = files.put
            remove_file = files.remove

        ref = with_files.add("a/slot-0")
        answer = with_files.claims.prepare(ref)
        with_files.extra["kinds"] = {"file": FileKind(Host(), (str(spec.parent),))}  # type: ignore[arg-type]
        with_files.start()
        spec.unlink()
        assert with_files.claims.prepare(ref) == answer
        assert spec.read_text() == "{}"
        with_files.claims.unprepare(ref)
        assert not spec.exists()

    def test_a_file_that_cannot_be_written_is_reported(self, with_files: EngineBench, spec: Path) -> None:
        ref = with_files.add("a/slot-0")
        with_files.claims.prepare(ref)
        spec.unlink()
        spec.mkdir()
        (message,) = with_files.reconciler.reconcile().stuck
        assert str(spec) in message
        assert with_files.claims.prepared() != []


class TestReboot:
    def test_a_reboot_undoes_the_host_and_claims_are_to_be_prepared_again(
        self, with_files: EngineBench, spec: Path
    ) -> None:
        bench, path = with_files, spec
        bench.reconciler.recover()
        ref = bench.add("a/slot-0")
        answer = bench.claims.prepare(ref)
        bench.claims.add(ref, Step("attachment", "vm/dev0", None, "a/0"), device="a/slot-0")
        assert path.exists()

        bench.host.state.clear()
        writes = len(bench.host.log)
        bench.start()
        bench.reconciler = Reconciler(bench.claims, boot_id=lambda: "another boot")
        report = bench.reconciler.recover()
        assert report.finished[0] == (
            f"claim {ref} was prepared before a reboot of the host, which undid it: it must be prepared again"
        )
        assert not path.exists()
        assert len(bench.host.log) == writes, "nothing is left on the host to undo"
        assert bench.is_initial()
        bench.claims.unprepare(ref)
        assert bench.claims.prepare(ref) == answer
        assert bench.reconciler.recover().finished == []

    def test_what_is_withheld_stays_so_until_it_was_looked_at(self, bench: EngineBench) -> None:
        bench.reconciler.recover()
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)

        def refuse(target: str, value: object) -> None:
            if target == "a/0/content":
                raise OSError(5, "Input/output error")

        bench.host.refuse = refuse
        bench.claims.unprepare(ref)
        bench.host.state.clear()
        bench.start()
        bench.reconciler = Reconciler(bench.claims, boot_id=lambda: "another boot")
        assert bench.journal.boot("another boot", {"file"}) == []
        assert bench.claims.withheld()
        bench.reconciler.recover()
        assert bench.claims.withheld() == {}


class TestDoubts:
    def lose_the_journal(self, bench: EngineBench) -> Path:
        bench.journal.close()  # type: ignore[attr-defined]
        (bench.folder / "journal.db").write_bytes(b"garbage" * 1000)
        bench.start()
        (aside,) = bench.folder.glob("journal.db.damaged-*[0-9Z]")
        assert aside.read_bytes().startswith(b"garbage")
        return aside

    def test_after_a_lost_journal_nothing_is_touched_and_possible_leftovers_are_listed(
        self, bench: EngineBench
    ) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        host = dict(bench.host.state)
        aside = self.lose_the_journal(bench)
        bench.reconciler = Reconciler(bench.claims, boot_id=lambda: BOOT, doubts=lambda held: ["a/0 has a driver"])
        for report in (bench.reconciler.recover(), bench.reconciler.reconcile()):
            assert "what had been prepared is unknown" in report.doubts[0]
            assert report.doubts[1:] == ["a/0 has a driver"]
            assert report.removed == report.finished == []
        assert bench.host.state == host
        assert bench.claims.prepared() == []
        assert bench.grants.marked == {ref.uid: ref}, "its devices go to no other claim"
        aside.unlink()
        assert bench.reconciler.reconcile().doubts == []

    def test_a_claim_of_which_the_host_has_something_goes_on_counting_as_held(self, bench: EngineBench) -> None:
        """Its journal was lost without a trace, and unprepare would not take it for done either (T9)."""
        ref = bench.add("a/slot-0")
        bench.grants.get(ref)
        remains = [f"/var/run/cdi/d.example_claim_{ref.uid}.json"]
        bench.extra["remains"] = lambda uid: remains if uid == ref.uid else ()
        bench.start()
        assert bench.reconciler.reconcile().stuck == [
            f"claim {ref}: claim {ref} is not in the journal, but the host still has: {remains[0]}"
        ]
        assert bench.grants.marked == {ref.uid: ref}
        remains.clear()
        bench.reconciler.reconcile()
        assert bench.is_initial()

    def test_a_claim_of_a_kind_that_is_not_served_any_more_stays_and_is_reported(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.claims.grants = {"ResourceClaim": bench.grants}
        assert bench.reconciler.reconcile().stuck == [
            f"claim {ref}: it is still prepared as a DeviceClaim, but this node now serves ResourceClaims; unprepare it"
        ]
        assert [prepared.ref for prepared in bench.claims.prepared()] == [ref]

    def test_a_host_that_cannot_be_looked_at_is_a_doubt(self, bench: EngineBench) -> None:
        def fail(held: frozenset[str]) -> list[str]:
            raise Failed("HostUnreadable", "no /sys")

        self.lose_the_journal(bench)
        bench.reconciler = Reconciler(bench.claims, boot_id=lambda: BOOT, doubts=fail)
        assert bench.reconciler.reconcile().doubts[1:] == ["cannot inspect the host: no /sys"]

    def test_what_vfio_has_and_vgpus_that_no_claim_holds_are_strays(self, tmp_path: Path) -> None:
        host = FakeSysfs(tmp_path, drivers=("vfio-pci",))
        for card in (
            pci_cards.gpu(driver="vfio-pci"),
            pci_cards.nic(driver="vfio-pci"),
            pci_cards.plain_nic(),
            pci_cards.t4_vgpu_card(),
            pci_cards.l40s_vgpu_card(vfs=1),
        ):
            host.add(card)
        uuid = "0a0b0c0d-0000-4000-8000-000000000001"
        host.vgpu.create("0000:3b:00.0", "nvidia-222", uuid)
        host.vgpu.set_type("0000:26:00.4", "1148")
        messages = orphaned_devices(Tree(tmp_path), ["pci/0000:01:00.0"])
        assert messages == [
            "0000:26:00.4 carries a vGPU of type 1148, but no claim here uses it",
            "0000:41:00.0 has the driver vfio-pci, but no claim here uses it",
            f"the mediated device {uuid} exists, but no claim here uses it",
        ]
        assert (
            orphaned_devices(
                Tree(tmp_path), ["pci/0000:26:00.4", "pci/0000:41:00.0", "pci/0000:01:00.0", f"mdev/{uuid}"]
            )
            == []
        )


def test_two_plugins_on_one_state_folder_see_each_others_claims(bench: EngineBench) -> None:
    """A rolling update: the new one starts before the old one ends."""
    ref = bench.add("a/slot-0")
    answer = bench.claims.prepare(ref)
    other = replace(bench, extra={})
    other.reconciler.recover()
    assert other.claims.prepare(ref) == answer
    other.claims.unprepare(ref)
    assert bench.claims.prepared() == []
    assert bench.is_initial()


def test_a_guest_that_refused_before_holds_up_neither_a_start_nor_its_machine(bench: EngineBench) -> None:
    """It was waited for 40 s at each start, before any call was served, and in each pass."""

    class Deaf(ToyAttachment):
        def apply(self, target: str, value: Value, deadline: Deadline) -> None:
            if value is None:
                waited.append(deadline.seconds)
                raise Denied("GuestRefused", "the guest does not let it go", retryable=True)
            super().apply(target, value, deadline)

    waited: list[float] = []
    bench.extra["kinds"] = {"attachment": Deaf(bench.host)}
    bench.start()
    ref = bench.add("a/slot-0")
    bench.claims.prepare(ref)
    bench.claims.add(ref, Step("attachment", "vm/dev0", None, "a/0"), device="a/slot-0")
    with pytest.raises(Failed, match="does not let it go"):
        bench.claims.unprepare(ref)
    waited.clear()
    bench.restart()
    bench.reconciler.reconcile()
    assert len(waited) == 2, "it is asked again at the start, and in the pass"
    assert max(waited) <= 5


def test_many_guests_that_refuse_hold_up_a_start_no_longer_than_a_few(bench: EngineBench) -> None:
    """They were waited for one after the other, each for as long as one may take."""

    class Deaf(ToyAttachment):
        def apply(self, target: str, value: Value, deadline: Deadline) -> None:
            if value is None:
                waited.append(deadline.seconds)
                bench.now += deadline.seconds
                raise Denied("GuestRefused", "the guest does not let it go", retryable=True)
            super().apply(target, value, deadline)

    waited: list[float] = []
    bench.slots, bench.extra["kinds"] = 8, {"attachment": Deaf(bench.host)}
    bench.__post_init__()
    refs = [bench.add(f"a/slot-{number}") for number in range(8)]
    for number, ref in enumerate(refs):
        bench.claims.prepare(ref)
        bench.claims.add(ref, Step("attachment", f"vm/dev{number}", None, f"a/{number}"), device=f"a/slot-{number}")
        with pytest.raises(Failed, match="does not let it go"):
            bench.claims.unprepare(ref)
    for act in (bench.restart, lambda: bench.reconciler.reconcile()):
        waited.clear()
        act()
        assert len(waited) == 8, "all are asked again"
        assert min(waited) > 0.4
        assert max(waited) > 4
        assert sum(waited) < 10 + 8 * 0.5
