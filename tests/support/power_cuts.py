"""A power cut at a chosen point of preparing or unpreparing a claim, and what comes of it (settled T18).

The machine is a host with SR-IOV, whose QEMU is killed; what its Linux had not written to the disk is lost, and with it
all of the kernel's state. The claim has a VF that is to be created, with settings, and a GPU; a machine has the VF of
another claim.
"""

from __future__ import annotations

from typing import Any

from tests.support import second_level, sriov_host
from tests.support.fault_points import assert_same
from tests.support.inside_plugin import InsidePlugin
from tests.support.qemu import Machine

UID = "cut"
VF, GPU = "0000-41-10-0", "0000-82-00-0"
DEVICES = [
    {
        "card": sriov_host.CARDS[0],
        "name": VF,
        "class": [{"vlan": 7, "trust": True}],
        "claim": [{"mac": "52:54:00:aa:bb:cc"}],
    },
    {"card": sriov_host.GPU, "name": GPU},
]
ACTS = ("prepare", "unprepare")
ATTACHED, ATTACHED_VF = "attached", "0000:81:10.0"
"""Another claim, and its device, which a machine has when the power is cut."""


class PowerCuts:
    """Undisturbed runs, done once, and cuts to be compared with them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.plugin = self._plugin()
        self.plugin.ask("recover")
        self.initial = self._state()
        self.answer = self._ask("prepare")
        self.calls = {"prepare": self.plugin.calls}
        """By act, all that changed something when nothing disturbed it, in order."""
        self.prepared = self._state()
        assert self.prepared["host"] != self.initial["host"]
        self._ask("unprepare")
        self.calls["unprepare"] = self.plugin.calls
        assert_same(self._state(), self.initial, "after an undisturbed run")

    def check(self, act: str, number: int) -> str:
        """Cut the power right after one call, boot, recover, ask again. The call; AssertionError where it is wrong."""
        self._attach_another()
        if act == "unprepare":
            self._ask("prepare")
        self.plugin.ask("stop_after", call=number)
        call = self._ask(act).get("stopped")
        when = f"power cut in {act} after call {number} ({call})"
        assert call == self.calls[act][number - 1], f"{when}: the undisturbed run had {self.calls[act][number - 1]}"

        self._machine.cut_power()

        self.plugin = self._plugin()
        file = self.plugin.ask("journal_file")
        assert file == {"integrity": "ok", "quarantined": None, "damaged": []}, f"{when}: {file}"
        report = self.plugin.ask("recover")
        assert not report["stuck"], f"{when}: {report}"
        assert not report["doubts"], f"{when}: {report}"
        assert_same(self._state(), self.initial, f"{when}: recovered")
        assert self._ask("prepare") == self.answer, f"{when}: another answer"
        assert_same(self._state(), self.prepared, f"{when}: asked again")
        self._ask("unprepare")
        assert_same(self._state(), self.initial, f"{when}: unprepared")
        return call

    def _attach_another(self) -> None:
        """A claim of its own, whose VF is in a machine by VFIO."""
        device = {"card": sriov_host.CARDS[1], "name": ATTACHED_VF.replace(":", "-").replace(".", "-")}
        self.plugin.ask("prepare", uid=ATTACHED, devices=[device])
        second_level.start(self._machine.guest, f"host={ATTACHED_VF}")

    def _plugin(self) -> InsidePlugin:
        # No boot loads it, only who has taken the card and given it back: one machine is to be like the other.
        self._machine.guest.check("modprobe virtio_net")
        return InsidePlugin.of(self._machine.guest)

    def _ask(self, act: str) -> dict[str, Any]:
        devices = {"devices": DEVICES} if act == "prepare" else {}
        return self.plugin.ask(act, uid=UID, **devices)

    def _state(self) -> dict[str, Any]:
        return self.plugin.ask("state")
