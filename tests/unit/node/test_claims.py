"""Preparing and unpreparing: all of it or nothing, the same answer each time, nothing owned twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc_node.claims import PrepareOptions
from devalloc_node.claims.claim_files import FileKind, Rendered
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host.files import Files
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import Step, Value
from tests.support.node_errors import raises
from tests.support.toy_host import SLOTS, EngineBench, ToyHost


@pytest.fixture
def bench(tmp_path: Path) -> EngineBench:
    return EngineBench(tmp_path / "node")


def refusing(*targets: str, only: Callable[[Value], bool] = lambda value: True) -> Callable[[str, Value], None]:
    """A host that refuses to change some properties."""

    def refuse(target: str, value: Value) -> None:
        if target in targets and only(value):
            raise OSError(5, "Input/output error", target)

    return refuse


class TestPrepare:
    def test_prepares_all_devices_and_answers_the_same_each_time(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-1", "b/any")
        answer = bench.claims.prepare(ref)
        assert [device.functions for device in answer.devices] == [("a/1",), ("b/0",)]
        assert bench.host.state == {
            "a/count": SLOTS, "a/1/setting": "a", "a/1/driver": "vfio",
            "b/count": SLOTS, "b/0/setting": "b", "b/0/driver": "vfio",
        }  # fmt: skip
        writes = len(bench.host.log)
        assert bench.claims.prepare(ref) == answer
        bench.restart()
        assert bench.claims.prepare(ref) == answer
        assert bench.claims.prepared() == [answer]
        assert len(bench.host.log) == writes

    def test_unprepare_puts_back_what_was_there(self, bench: EngineBench) -> None:
        bench.host.state = before = {"a/count": 2, "a/1/driver": "igbvf", "a/1/setting": "old", "b/count": SLOTS}
        bench.binding.slots = 2
        ref = bench.add("a/slot-1")
        before = dict(before)
        bench.claims.prepare(ref)
        assert bench.host.state["a/1/driver"] == "vfio"
        bench.claims.unprepare(ref)
        assert bench.host.state == before
        assert not bench.journal.claims()
        bench.claims.unprepare(ref)

    def test_a_card_is_set_up_by_its_first_user_and_put_back_after_its_last(self, bench: EngineBench) -> None:
        one, two = bench.add("a/slot-0"), bench.add("a/slot-1")
        bench.claims.prepare(one)
        bench.claims.prepare(two)
        bench.claims.unprepare(one)
        assert bench.host.state["a/count"] == SLOTS
        bench.claims.unprepare(two)
        assert bench.is_initial()
        assert [value for target, value in bench.host.log if target == "a/count"] == [SLOTS, None]

    def test_what_backs_a_device_is_chosen_among_what_is_free(self, bench: EngineBench) -> None:
        refs = [bench.add("a/any") for _ in range(SLOTS + 1)]
        slots = [bench.claims.prepare(ref).devices[0].functions[0] for ref in refs[:-1]]
        assert slots == [f"a/{number}" for number in range(SLOTS)]
        with raises(Denied, "DeviceExhausted", match="all 4 slots of a are held"):
            bench.claims.prepare(refs[-1])
        bench.claims.unprepare(refs[2])
        assert bench.claims.prepare(refs[-1]).devices[0].functions == ("a/2",)

    def test_two_devices_of_one_claim_are_backed_by_two_things(self, bench: EngineBench) -> None:
        answer = bench.claims.prepare(bench.add("a/any-1", "a/any-2"))
        assert [device.functions for device in answer.devices] == [("a/0",), ("a/1",)]

    def test_a_device_that_another_claim_holds_is_refused_and_says_whose_it_is(self, bench: EngineBench) -> None:
        one, two = bench.add("a/slot-0"), bench.add("b/slot-0", "a/slot-0")
        bench.claims.prepare(one)
        before = dict(bench.host.state)
        with raises(
            Denied,
            "DeviceInUse",
            retryable=True,
            match="device a/slot-0: slot/a/0 is held by claim default/claim-uid-0",
        ):
            bench.claims.prepare(two)
        assert bench.host.state == before
        assert [record.ref for record in bench.journal.claims()] == [one]

    def test_one_device_twice_in_a_claim_is_refused(self, bench: EngineBench) -> None:
        with raises(
            Denied,
            "DeviceInUse",
            retryable=False,
            match="a/slot-0 and a/slot-0 of claim default/claim-uid-0 both need slot/a/0",
        ):
            bench.claims.prepare(bench.add("a/slot-0", "a/slot-0"))
        assert bench.is_initial()

    def test_admin_access_binds_nothing_and_excludes_no_claim(self, bench: EngineBench) -> None:
        owner = bench.add("a/slot-0")
        admin = bench.add(GrantedDevice(("0",), "a", "slot-0", admin=True))
        bench.claims.prepare(owner)
        before = dict(bench.host.state)
        (device,) = bench.claims.prepare(admin).devices
        assert (device.binding, device.admin) == ("none", True)
        assert bench.host.state == before
        bench.claims.unprepare(admin)
        assert bench.host.state == before

    def test_a_share_needs_a_binding_that_can_share(self, bench: EngineBench) -> None:
        share = GrantedDevice(("0",), "a", "slot-0", share="half")
        with raises(Denied, "ShareUnsupported"):
            bench.claims.prepare(bench.add(share))
        assert bench.is_initial()
        bench.binding.shares = True
        assert bench.claims.prepare(bench.add(share)).devices

    def test_an_unknown_claim_or_another_uid_is_denied(self, bench: EngineBench) -> None:
        with raises(Denied, "ClaimNotFound"):
            bench.claims.prepare(ClaimRef("default", "nobody", "uid-9"))
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        with raises(Denied, "ClaimUidMismatch"):
            bench.claims.prepare(replace(ref, name="other"))

    @pytest.mark.parametrize(
        "ref",
        [
            ClaimRef("default", "../../etc", "u"),
            ClaimRef("default", "a", "../x"),
            ClaimRef("default", "a", "u\0"),
            ClaimRef("", "a", "u"),
            ClaimRef("default", "a", "u" * 10_000_000),
            ClaimRef("default", "\ud800", "u"),
        ],
    )
    def test_hostile_names_are_denied(self, bench: EngineBench, ref: ClaimRef) -> None:
        for act in (bench.claims.prepare, bench.claims.unprepare):
            with pytest.raises(Denied) as refused:
                act(ref)
            assert len(refused.value.message) < 500
        assert bench.is_initial()

    def test_a_claim_that_was_given_other_devices_meanwhile_is_not_answered_as_before(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.grants.add(ref.uid, "a/slot-1")
        with raises(Failed, "ClaimMoved"):
            bench.claims.prepare(ref)
        bench.claims.unprepare(ref)
        assert bench.claims.prepare(ref).devices[0].functions == ("a/1",)

    def test_a_prepared_claim_is_answered_while_the_store_is_down(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        answer = bench.claims.prepare(ref)
        bench.grants.fails = Failed("StoreUnavailable", "no answer")
        assert bench.claims.prepare(ref) == answer
        with pytest.raises(Failed):
            bench.claims.prepare(ClaimRef("default", "other", "uid-7"))

    def test_a_deadline_that_is_over_leaves_nothing(self, bench: EngineBench) -> None:
        with pytest.raises(Failed) as late:
            bench.claims.prepare(bench.add("a/slot-0"), Deadline.after(-1))
        assert late.value.retryable
        assert bench.is_initial()


class TestFailure:
    @pytest.mark.parametrize("target", ["a/count", "a/0/setting", "a/0/driver", "b/count", "b/1/setting", "b/1/driver"])
    def test_a_step_that_fails_undoes_those_before_it(self, bench: EngineBench, target: str) -> None:
        ref = bench.add("a/slot-0", "b/slot-1")
        bench.host.refuse = refusing(target)
        with raises(Failed, "HostRefused", match=f"{target}.*Input/output error"):
            bench.claims.prepare(ref)
        bench.host.refuse = refusing()
        assert bench.is_initial()
        assert bench.claims.prepare(ref)

    def test_the_error_names_everything_that_could_not_be_undone(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0", "b/slot-1")
        undo = refusing("a/0/driver", "b/1/setting", only=lambda value: value is None)
        bench.host.refuse = lambda target, value: (undo(target, value), refusing("b/1/driver")(target, value))[1]
        with pytest.raises(Failed) as failed:
            bench.claims.prepare(ref)
        for text in ("property of b/1/driver", "b/1/setting", "a/0/driver", "tries again"):
            assert text in failed.value.message
        stuck = {step.step.target for step in bench.journal.steps(ref.uid) if step.state == "stuck"}
        assert stuck == {"a/0/driver", "b/1/setting"}
        # What stands below it is not touched, and its device stays held.
        assert bench.host.state["a/0/setting"] == "a"
        assert bench.host.state["a/count"] == SLOTS
        with pytest.raises(Denied, match="is held by claim"):
            bench.claims.prepare(bench.add("a/slot-0"))
        bench.host.refuse = refusing()
        report = bench.reconciler.reconcile()
        assert report.finished == ["claim default/claim-uid-0 (preparing) is undone"]
        assert not bench.host.state

    def test_an_unprepare_that_fails_is_tried_again_and_the_claim_is_not_given_out_meanwhile(
        self, bench: EngineBench
    ) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.host.refuse = refusing("a/0/driver")
        with pytest.raises(Failed) as failed:
            bench.claims.unprepare(ref)
        assert failed.value.retryable
        with pytest.raises(Failed):
            bench.claims.prepare(ref)
        assert bench.claims.prepared() == []
        bench.host.refuse = refusing()
        bench.claims.unprepare(ref)
        assert bench.is_initial()

    def test_a_card_that_cannot_be_put_back_does_not_keep_the_claim(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.host.refuse = refusing("a/count")
        bench.claims.unprepare(ref)
        assert not bench.journal.claims()
        assert bench.host.state == {"a/count": SLOTS}
        assert bench.reconciler.reconcile().stuck == [
            "card/a is no longer used but was not restored: property of a/count to 4: Input/output error"
        ]
        again = bench.add("a/slot-1")
        bench.claims.prepare(again)
        bench.host.refuse = refusing()
        bench.claims.unprepare(again)
        assert bench.is_initial()

    def test_a_device_that_is_gone_needs_no_undoing(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)

        def gone(target: str, value: Value) -> None:
            if target.startswith("a/0/"):
                raise Denied("DeviceGone", f"{target} no longer exists")

        bench.host.refuse = gone
        bench.claims.unprepare(ref)
        assert not bench.journal.claims()

    def test_a_device_that_cannot_be_reset_is_withheld_until_it_can(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.host.refuse = refusing("a/0/content")
        bench.claims.unprepare(ref)
        assert bench.claims.withheld() == {
            "a/slot-0": "a/0/content did not come back from its reset: Input/output error"
        }
        # It stays as it is, its card too, and the claim is rid of it.
        assert bench.host.state == {"a/count": SLOTS, "a/0/setting": "a", "a/0/driver": "vfio"}
        assert not bench.journal.claims()
        with raises(Denied, "DeviceWithheld", match="is withheld: a/0/content did not come back"):
            bench.claims.prepare(bench.add("a/slot-0"))
        other = bench.add("a/any")
        assert bench.claims.prepare(other).devices[0].functions == ("a/1",)
        bench.claims.unprepare(other)
        assert len(bench.reconciler.reconcile().stuck) == 1
        bench.host.refuse = refusing()
        assert bench.reconciler.reconcile().finished == ["device a/slot-0 was cleaned and is offered again"]
        assert bench.claims.withheld() == {}
        assert bench.is_initial()

    def test_a_step_without_an_answer_is_undone_and_then_certain(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")

        def silent(target: str, value: Value) -> None:
            if target == "a/0/driver" and value is not None:
                raise Unknown("HostNotAnswering", "the kernel does not complete a write")

        bench.host.refuse = silent
        with raises(Failed, "HostNotAnswering", match=r"does not complete a write\. All steps were undone"):
            bench.claims.prepare(ref)
        assert bench.is_initial()

    def test_what_cannot_be_undone_either_stays_until_it_is_known(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")

        def silent(target: str, value: Value) -> None:
            if target == "a/0/driver":
                bench.host.state[target] = "half"
                raise Unknown("HostNotAnswering", "the kernel does not complete a write")

        bench.host.refuse = silent
        with pytest.raises(Failed, match="tries again"):
            bench.claims.prepare(ref)
        assert bench.host.state["a/count"] == SLOTS
        assert "slot/a/0" in bench.journal.held()
        bench.host.refuse = refusing()
        assert bench.claims.prepare(ref)

    def test_a_bug_in_a_binding_is_an_error_of_that_claim(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")

        def broken(target: str, value: Value) -> None:
            if target == "a/0/driver":
                raise ZeroDivisionError

        bench.host.refuse = broken
        with raises(NodeError, "InternalError"):
            bench.claims.prepare(ref)
        bench.host.refuse = refusing()
        assert bench.is_initial()


class TestUnprepare:
    def test_of_an_unknown_claim_is_success(self, bench: EngineBench) -> None:
        bench.claims.prepare(bench.add("a/slot-0"))
        state, described = dict(bench.host.state), bench.claims.describe()
        bench.claims.unprepare(ClaimRef("default", "nobody", "uid-9"))
        assert (bench.host.state, bench.claims.describe()) == (state, described)

    def test_unless_the_host_still_has_something_of_it(self, tmp_path: Path) -> None:
        bench = EngineBench(tmp_path, extra={"remains": lambda uid: [f"machine m has device claim-{uid}"]})
        with raises(Failed, "ClaimRemains", match="machine m has device claim-uid-9"):
            bench.claims.unprepare(ClaimRef("default", "nobody", "uid-9"))

    def test_a_device_in_use_stays_bound(self, tmp_path: Path) -> None:
        users = {"slot-0": "qemu (17)"}
        bench = EngineBench(tmp_path, extra={"in_use": lambda device: users.get(device.device)})
        ref = bench.add("a/slot-0", "a/slot-1")
        bench.claims.prepare(ref)
        with pytest.raises(Failed, match=r"qemu \(17\) still has device a/slot-0 open"):
            bench.claims.unprepare(ref)
        assert bench.host.state["a/0/driver"] == "vfio"
        assert "a/1/driver" not in bench.host.state
        users.clear()
        bench.claims.unprepare(ref)
        assert bench.is_initial()

    def test_and_so_does_one_of_whose_shares_any_is_in_use(self, tmp_path: Path) -> None:
        users = {"a/0": "qemu (17)"}
        bench = EngineBench(tmp_path, extra={"in_use": lambda device: users.get(device.functions[0])})
        bench.binding.shares = True
        ref = bench.add(*(GrantedDevice(("0",), "a", "any", share=share) for share in ("first", "second")))
        bench.claims.prepare(ref)
        with pytest.raises(Failed, match=r"qemu \(17\) still has device a/any open"):
            bench.claims.unprepare(ref)
        assert {bench.host.state.get(f"a/{slot}/driver") for slot in (0, 1)} == {"vfio"}
        users.clear()
        bench.claims.unprepare(ref)
        assert bench.is_initial()


class TestAdded:
    STEP = Step("attachment", "machine-1/dev0", None, "a/0")

    def test_an_attachment_is_undone_before_the_device_is_touched(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.host.state["machine-1/count"] = 1
        for _ in range(2):
            bench.claims.add(ref, self.STEP, device="a/slot-0")
        assert bench.host.log.count(("machine-1/dev0", "a/0")) == 1
        bench.claims.unprepare(ref)
        undone = [target for target, value in bench.host.log if value is None]
        assert undone[0] == "machine-1/dev0"

    def test_a_machine_that_does_not_let_go_keeps_the_device_bound_unless_forced(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.claims.add(ref, self.STEP, device="a/slot-0")
        bench.host.refuse = refusing("machine-1/dev0")
        for act in (
            lambda: bench.claims.unprepare(ref),
            lambda: bench.claims.remove(ref, "attachment", "machine-1/dev0"),
        ):
            with pytest.raises(Failed, match="machine-1/dev0"):
                act()
        assert bench.host.state["a/0/driver"] == "vfio"
        bench.claims.unprepare(ref, force=True)
        assert bench.is_initial()

    def test_one_that_fails_is_undone_and_the_claim_stays_prepared(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        answer = bench.claims.prepare(ref)
        bench.host.refuse = refusing("machine-1/dev0")
        with pytest.raises(Failed):
            bench.claims.add(ref, self.STEP, device="a/slot-0")
        assert bench.claims.prepared() == [answer]
        bench.host.refuse = refusing()
        bench.claims.unprepare(ref)
        assert bench.is_initial()

    def test_only_a_prepared_claim_takes_steps(self, bench: EngineBench) -> None:
        with raises(Denied, "ClaimNotPrepared"):
            bench.claims.add(bench.add("a/slot-0"), self.STEP)

    def test_detaching_twice_is_no_error(self, bench: EngineBench) -> None:
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.claims.add(ref, self.STEP, device="a/slot-0")
        for _ in range(2):
            bench.claims.remove(ref, "attachment", "machine-1/dev0")
        assert "machine-1/dev0" not in bench.host.state


class TestFiles:
    def bench(self, folder: Path) -> EngineBench:
        def render(grant: Grant, devices: object) -> Rendered:
            path = str(folder / f"cdi/{grant.ref.uid}.json")
            return Rendered({path: b"{}\n"}, {"a/slot-0": (f"x/y={grant.ref.uid}",)})

        class Host:
            files = Files((str(folder),))
            put_file = files.put
            remove_file = files.remove

        files = FileKind(Host())  # type: ignore[arg-type]
        return EngineBench(folder / "node", extra={"kinds": {"file": files}, "render": {"DeviceClaim": [render]}})

    def test_files_come_after_the_devices_and_go_with_them(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        ref = bench.add("a/slot-0")
        answer = bench.claims.prepare(ref)
        assert answer.cdi_ids == {"a/slot-0": ("x/y=uid-0",)}
        assert bench.claims.prepare(ref) == answer
        assert (tmp_path / "cdi/uid-0.json").read_text() == "{}\n"
        bench.claims.unprepare(ref)
        assert not (tmp_path / "cdi").exists()
        assert bench.is_initial()

    def test_a_file_that_cannot_be_written_undoes_the_devices(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        (tmp_path / "cdi").write_text("not a folder")
        with pytest.raises(Failed, match=r"uid-0\.json"):
            bench.claims.prepare(bench.add("a/slot-0"))
        assert bench.host.state == {}


def test_the_audit_log_says_who_changed_what_for_which_claim(
    bench: EngineBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devalloc.audit")
    ref = bench.add("a/slot-0")
    bench.claims.prepare(ref, caller="kubelet")
    bench.claims.unprepare(ref, caller="user alice")
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "devalloc.audit"]
    assert [line["event"] for line in lines] == [*["step"] * 4, "prepared", *["undo"] * 4, "unprepared"]
    driver = next(line for line in lines if line.get("target") == "a/0/driver")
    assert driver == {
        "event": "step", "kind": "property", "target": "a/0/driver", "device": "a/slot-0", "caller": "kubelet",
        "claim": "uid-0", "after": "vfio",
    }  # fmt: skip
    assert lines[-1] == {"event": "unprepared", "claim": "uid-0", "name": str(ref), "caller": "user alice"}


def test_describe_tells_all_that_the_journal_says(bench: EngineBench) -> None:
    ref = bench.add("a/slot-0")
    bench.claims.prepare(ref)
    described = bench.claims.describe()
    assert json.loads(json.dumps(described)) == described
    (claim,) = described["claims"]
    assert (claim["uid"], claim["state"], claim["holds"]) == ("uid-0", "prepared", ["slot/a/0"])
    assert described["shared"] == [{"name": "card/a", "users": ["uid-0"], "steps": described["shared"][0]["steps"]}]


def test_a_host_that_says_yes_and_does_nothing_is_not_believed(bench: EngineBench) -> None:
    class Deaf(ToyHost):
        def set(self, target: str, value: Value) -> None:
            if not target.endswith("driver"):
                super().set(target, value)

    bench.host.__class__ = Deaf
    with raises(Failed, "NotSo"):
        bench.claims.prepare(bench.add("a/slot-0"))
    assert bench.is_initial()


def test_an_unexpected_exception_is_an_error_of_that_claim_and_holds_nothing(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.binding, "keys", lambda *arguments: 1 // 0)
    with raises(Failed, "InternalError", match="ZeroDivisionError"):
        bench.claims.prepare(bench.add("a/slot-0"))
    assert bench.is_initial()


@pytest.mark.parametrize(("given", "reserve"), [(40, 10), (300, 10), (8, 2), (None, 10)])
def test_of_the_time_of_a_caller_enough_is_kept_for_undoing(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch, given: float | None, reserve: float
) -> None:
    dues: list[Deadline] = []
    prepare = bench.binding.prepare
    monkeypatch.setattr(bench.binding, "prepare", lambda *args: dues.append(args[2]) or prepare(*args))
    deadline = Deadline.after(given or PrepareOptions().prepare_seconds)
    bench.claims.prepare(bench.add("a/slot-0"), None if given is None else deadline)
    assert dues[0].at == pytest.approx(deadline.at - reserve, abs=0.5)
