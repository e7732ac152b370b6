"""Rates of machines: what is set on interfaces and disks, what a kill leaves at any moment, and what others own."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import IPRoute

from devalloc_machines.qemu import rates
from devalloc_machines.qemu.records import MachineRecord, content_of, record_of
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import NO_RATES, RateLimits, spec_of
from devalloc_node.deadline import Deadline
from devalloc_node.host import network_namespace, traffic
from devalloc_node.host.network_namespace import netlink
from tests.support.deadlines import soon
from tests.support.machines import virtual_machine
from tests.support.private_network import add_tap, other_interfaces

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
TAP = "taprate"
RATE = 12_500_000


class Killed(BaseException):
    """The plugin ends here."""


class Gate:
    """Counts calls that change something, and stops at one of them, before or after it is done."""

    def __init__(self) -> None:
        self.calls, self.stop_at, self.is_done_first = 0, -1, False

    def __call__(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            stops = self.calls == self.stop_at
            if stops and not self.is_done_first:
                raise Killed
            answer = act(*arguments, **named)
            if stops:
                raise Killed
            return answer

        return gated

    @contextmanager
    def netlink(self) -> Iterator[Any]:
        with netlink() as route:
            yield SimpleNamespace(
                tc=self(route.tc),
                link=self(route.link),
                get_qdiscs=route.get_qdiscs,
                get_filters=route.get_filters,
            )


def is_bare() -> bool:
    """Nothing of ours is in this network, by the kernel's own lists."""
    with IPRoute() as here:
        names = [link.get_attr("IFLA_IFNAME") for link in here.get_links()]
        handles = {qdisc["handle"] for qdisc in here.get_qdiscs()}
    return not [name for name in names if name.startswith("dvi-")] and handles <= {0}


def change(before: int | None, after: int | None) -> Callable[[], None]:
    def changed() -> None:
        traffic.set_rates(None, TAP, after)

    if before is not None:
        traffic.set_rates(None, TAP, before)
    return changed


@needs_root
@pytest.mark.parametrize(("before", "after"), [(None, RATE), (RATE, RATE // 4), (RATE, None)])
def test_what_a_kill_leaves_at_any_call_is_completed_or_taken_away(
    before: int | None, after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0
    for is_done_first in (False, True):
        for stop_at in range(1, 50):
            gate = Gate()
            with other_interfaces():
                add_tap(TAP)
                changed = change(before, after)
                gate.stop_at, gate.is_done_first = stop_at, is_done_first
                monkeypatch.setattr(traffic, "netlink", gate.netlink)
                try:
                    changed()
                    break
                except Killed:
                    tried += 1
                finally:
                    monkeypatch.undo()
                traffic.set_rates(None, TAP, after)
                assert traffic.observe_rates(None, TAP).are(after), f"after call {stop_at}"
                traffic.set_rates(None, TAP, None)
                assert is_bare(), f"after call {stop_at}"
        assert gate.calls == stop_at - 1, "every call was reached"
    assert tried >= 4


@needs_root
@pytest.mark.parametrize("rate", [1, traffic.MIN_RATE - 1, traffic.MAX_RATE + 1])
def test_a_rate_that_no_token_bucket_has_is_refused_and_nothing_is_changed(rate: int) -> None:
    with other_interfaces():
        add_tap(TAP)
        for most in (traffic.MIN_RATE, traffic.MAX_RATE):
            traffic.set_rates(None, TAP, most)
            assert traffic.observe_rates(None, TAP).are(most)
        traffic.set_rates(None, TAP, None)
        with pytest.raises(OSError, match="a limit must be 100 to 4294967295 bytes/s"):
            traffic.set_rates(None, TAP, rate)
        assert is_bare()


def test_a_number_that_netlink_has_no_room_for_is_an_error_of_the_host() -> None:
    with pytest.raises(OSError, match="format requires"):
        network_namespace.in_a_thread(lambda: struct.pack("I", 1 << 32))


@needs_root
def test_an_interface_with_disciplines_of_another_program_is_refused_and_stays_as_it_is() -> None:
    def handles() -> set[int]:
        with IPRoute() as here:
            return {qdisc["handle"] for qdisc in here.get_qdiscs()} - {0}

    for kind, more in (("htb", {"handle": 0x50000}), ("ingress", {"handle": 0xFFFF0000})):
        with other_interfaces():
            add_tap(TAP)
            with IPRoute() as here:
                here.tc("add", kind, index=here.link_lookup(ifname=TAP)[0], **more)
            before = handles()
            assert before
            with pytest.raises(traffic.ForeignQdiscError, match="of another program"):
                traffic.set_rates(None, TAP, RATE)
            traffic.set_rates(None, TAP, None)
            assert handles() == before
            with IPRoute() as here:
                assert not here.link_lookup(ifname=traffic.ifb_name(TAP))


@needs_root
def test_limits_outlive_no_interface_and_another_one_of_its_name_has_none() -> None:
    with other_interfaces():
        add_tap(TAP)
        traffic.set_rates(None, TAP, RATE)
        with IPRoute() as here:
            here.link("del", index=here.link_lookup(ifname=TAP)[0])
        assert not traffic.observe_rates(None, TAP).is_clean
        add_tap(TAP)
        assert traffic.observe_rates(None, TAP).to_guest is None
        traffic.set_rates(None, TAP, RATE)
        assert traffic.observe_rates(None, TAP).are(RATE), "the rest of the first one is used again"
        with IPRoute() as here:
            here.link("del", index=here.link_lookup(ifname=traffic.ifb_name(TAP))[0])
        assert not traffic.observe_rates(None, TAP).are(RATE), "what the guest sends goes nowhere"
        traffic.set_rates(None, TAP, RATE)
        assert traffic.observe_rates(None, TAP).are(RATE)
        traffic.set_rates(None, TAP, None)
        assert is_bare()


class Disks:
    """QEMU's disks, as far as rates go."""

    def __init__(self, *paths: str, **groups: tuple[str, int]) -> None:
        self.groups: dict[str, tuple[str | None, int]] = {**dict.fromkeys(paths, (None, 0)), **groups}

    def execute(self, command: str, arguments: Any = None, *, deadline: Deadline, fd: int | None = None) -> Any:
        if command == "query-block":
            listed = [{"device": "", "qdev": "cdrom"}]  # nothing is in it
            for path, (group, rate) in self.groups.items():
                medium = {"bps": rate, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0}
                listed.append({"qdev": path, "inserted": medium | ({"group": group} if group else {})})  # type: ignore[dict-item]
            return listed
        assert command == "block_set_io_throttle"
        rate = arguments["bps"]
        self.groups[arguments["id"]] = (arguments["group"] if rate else None, rate)
        for path, (group, _) in self.groups.items():
            if rate and group == arguments["group"]:  # a group has one rate
                self.groups[path] = (group, rate)
        return {}


class Machines:
    """The registry of machines, as far as rates go. Its records outlive it."""

    def __init__(self, content: dict[str, Mapping[str, Any]], gate: Gate) -> None:
        self.content, self.gate = content, gate
        self.config = MachineConfig(state=Path("/none"), taps=("*",))
        self.records = self

    def find(self, key: str) -> MachineRecord | None:
        return record_of(key, self.content[key]) if key in self.content else None

    def put(self, record: MachineRecord) -> None:
        self.gate(self.content.__setitem__)(record.spec.key, content_of(record))

    def tap_lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        return nullcontext()

    def records(self, room: str) -> Mapping[str, Mapping[str, Any]]:  # type: ignore[no-redef]
        return self.content


def machines(content: dict[str, Mapping[str, Any]], gate: Gate | None = None) -> Any:
    made = Machines(content, gate or Gate())
    made.records = SimpleNamespace(records=lambda room: content)  # type: ignore[assignment]
    return made


def running(name: str = "m", state: str = "running", **spec: Any) -> MachineRecord:
    nics = [{"backend": "tap", "interface": TAP, "bandwidth": RATE}, {"backend": "user"}]
    machine = virtual_machine(name, **{"nics": nics, "diskIO": "20M", **spec})
    return MachineRecord(machine.to_manifest(), state, "run")  # type: ignore[arg-type]


@needs_root
def test_a_machine_whose_plugin_is_killed_at_any_moment_leaves_nothing_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    for stop_at in range(1, 50):
        gate = Gate()
        record = running()
        content = {record.spec.key: content_of(record)}
        with other_interfaces():
            add_tap(TAP)
            gate.stop_at, gate.is_done_first = stop_at, True
            monkeypatch.setattr(traffic, "netlink", gate.netlink)
            try:
                rates.enforce(machines(content, gate), record, Disks("a", "b"), soon())  # type: ignore[arg-type]
                break
            except Killed:
                pass
            finally:
                monkeypatch.undo()
            ended = record_of(record.spec.key, content[record.spec.key]).become("stopped")
            content[ended.spec.key] = content_of(ended)
            assert rates.remove_tap_limits(machines(content), ended.spec.key)
            assert is_bare(), f"after call {stop_at}"
            assert record_of(ended.spec.key, content[ended.spec.key]).tap_limits == ()
    assert gate.calls == stop_at - 1 > 5


@needs_root
def test_the_next_user_of_an_interface_keeps_its_limit_when_the_last_one_is_seen_to_end_late() -> None:
    first, second = running("first"), running("second")
    content = {each.spec.key: content_of(each) for each in (first, second)}
    with other_interfaces():
        add_tap(TAP)
        first, problems = rates.enforce(machines(content), first, Disks(), soon())  # type: ignore[arg-type]
        assert (problems, first.tap_limits) == ((), (("", TAP),))
        rates.enforce(machines(content), second, Disks(), soon())  # type: ignore[arg-type]
        assert rates.remove_tap_limits(machines(content), "default/first")
        assert traffic.observe_rates(None, TAP).are(RATE)
        assert rates.remove_tap_limits(machines(content), "default/second")
        assert is_bare()


def test_a_limit_that_cannot_be_removed_is_tried_again_without_writing_the_record_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = replace(running(), tap_limits=(("", TAP),)).become("stopped")
    content = {ended.spec.key: content_of(ended)}
    registry, written = machines(content), []
    monkeypatch.setattr(registry, "put", written.append)

    def refuse(*_: object) -> None:
        raise OSError(16, "busy")

    monkeypatch.setattr(traffic, "set_rates", refuse)
    assert [rates.remove_tap_limits(registry, ended.spec.key) for _ in range(3)] == [False] * 3
    assert written == []
    monkeypatch.setattr(traffic, "set_rates", lambda *_: None)
    assert rates.remove_tap_limits(registry, ended.spec.key)
    assert [each.tap_limits for each in written] == [()]


@needs_root
def test_rates_that_cannot_be_enforced_are_reported_and_the_others_are_set() -> None:
    record = running(
        nics=[{"backend": "user", "bandwidth": RATE}, {"backend": "tap", "interface": "gone", "bandwidth": 1}]
    )
    content = {record.spec.key: content_of(record)}
    disks = Disks("a", other=("theirs", 1000))
    with other_interfaces():
        after, problems = rates.enforce(machines(content), record, disks, soon())  # type: ignore[arg-type]
    by_user, of_disk, missing = sorted(problems, key=lambda text: ("gone" in text, "diskIO" in text))
    assert "nics[0].bandwidth: cards with backend user cannot be limited" in by_user
    assert "disk other is in throttle group 'theirs' of another program" in of_disk
    assert "the bandwidth of TAP gone is not limited" in missing
    assert disks.groups == {"a": (rates.GROUP, 20_000_000), "other": ("theirs", 1000)}
    lower = replace(after, rates=RateLimits(None, after.spec.rates.nics))
    with other_interfaces():
        rates.enforce(machines(content), lower, disks, soon())  # type: ignore[arg-type]
    assert disks.groups == {"a": (None, 0), "other": ("theirs", 1000)}


def test_the_flash_chips_of_firmware_are_no_disks() -> None:
    """QEMU 7.2 lists them as ``/machine/system.flash0``, and writes there while all CPUs of the machine wait."""
    disks = Disks("/machine/system.flash0", "/machine/system.flash1", "/machine/peripheral/disk0-dev/virtio-backend")
    unmet = rates.unmet_rates(running(nics=[]), MachineConfig(), disks, soon())  # type: ignore[arg-type]
    assert unmet.disks == {"/machine/peripheral/disk0-dev/virtio-backend": 20_000_000}


@pytest.mark.parametrize("path", [["/disk"], {"a": 1}, "/" * 1000, 7])
def test_what_a_qemu_calls_its_disks_is_a_short_text(path: Any) -> None:
    disks = Disks()
    disks.execute = lambda *_, **__: [{"qdev": path, "inserted": {"bps": 0}}]  # type: ignore[method-assign]
    with pytest.raises((TypeError, ValueError)):
        rates.unmet_rates(running(nics=[]), MachineConfig(), disks, soon())  # type: ignore[arg-type]


def test_no_interface_is_limited_that_machines_of_the_namespace_may_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a machine's object may name one after the plugin has lost its journal."""
    monkeypatch.setattr(traffic, "observe_rates", lambda namespace, tap: traffic.NO_RATES)
    record, config = running(nics=[{"backend": "tap", "interface": "eth0", "bandwidth": 1}]), MachineConfig()
    unmet = rates.unmet_rates(record, config, Disks(), soon())  # type: ignore[arg-type]
    assert (unmet.taps, unmet.problems) == (
        (),
        ("the bandwidth of TAP eth0 is not limited: machines of namespace default may not use it (--tap)",),
    )
    before = replace(record, tap_limits=(("", "eth0"),))
    assert rates.unmet_rates(before, config, Disks(), soon()).taps, "it was allowed, and stays limited"  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), OSError(95, "Not supported")])
def test_a_plugin_without_the_right_says_so(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(namespace: Path | None, tap: str, rate: int | None) -> None:
        raise error

    monkeypatch.setattr(traffic, "observe_rates", lambda namespace, tap: traffic.NO_RATES)
    monkeypatch.setattr(traffic, "set_rates", refused)
    record = running()
    _, problems = rates.enforce(machines({}), record, Disks("a"), soon())  # type: ignore[arg-type]
    advice = " (the plugin needs CAP_NET_ADMIN)" if isinstance(error, PermissionError) else ""
    assert problems == (f"the bandwidth of TAP {TAP} is not limited: {error.strerror}{advice}",)


def test_the_records_of_an_earlier_version_have_no_limits_and_later_ones_keep_theirs() -> None:
    record = replace(running(), rates=RateLimits(5, (None, 7)), tap_limits=(("/run/netns/a", "tap0"), ("", TAP)))
    content = content_of(record)
    assert record_of(record.spec.key, content) == record
    old = {name: value for name, value in content.items() if name not in ("rates", "tap_limits")}
    assert record_of(record.spec.key, old).wanted_rates == record.spec.rates
    assert record_of(record.spec.key, old).tap_limits == ()


_RATE = st.none() | st.integers(1, 5)


@given(_RATE, _RATE, _RATE, _RATE, st.booleans())
def test_without_room_no_rate_is_raised_and_with_room_all_are_as_the_object_says(
    disk: int | None, card: int | None, now_disk: int | None, now_card: int | None, is_admitted: bool
) -> None:
    before = RateLimits(disk, (card, card))
    nics = [{"backend": "tap", "interface": "tap1"} | ({} if now_card is None else {"bandwidth": now_card})] * 2
    spec = {} if now_disk is None else {"diskIO": now_disk}
    then = spec_of(virtual_machine("m", nics=[{"backend": "tap", "interface": "tap1"}, {"backend": "user"}]))
    now = spec_of(virtual_machine("m", nics=nics, **spec))
    wanted = rates.of_running(then, now, before, is_admitted=is_admitted)
    assert wanted.nics[1] == card, "a card that is another one by now keeps its rate"
    for had, requested, gets in ((disk, now_disk, wanted.disk_io), (card, now_card, wanted.nics[0])):
        if is_admitted or had is None or requested is None:
            assert gets == requested
        else:
            assert gets == min(had, requested)
    assert wanted.is_limited == (wanted not in (NO_RATES, RateLimits(None, (None, None))))
