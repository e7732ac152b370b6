"""Limit the rate of a TAP interface in both directions, by netlink.

What goes to the guest leaves through the TAP, where a token bucket (TBF) delays it. What comes from the guest can only
be delayed where it leaves an interface, too: the TAP's ingress redirects all of it to an interface of its own (IFB),
which has a token bucket of the same rate and gives it back.

The kernel is the record of what is set. Ours have a handle, a priority and a name that others do not use; a TAP with
queueing disciplines of another program is refused, and never changed.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc.inventory.capacity.machines import TBF_LATENCY_MS, bucket_bytes
from devalloc_node.host.network_namespace import (
    Answer,
    has_interface,
    in_a_thread,
    inside,
    interface_index,
    netlink,
)

MIN_RATE = 100
"""Bytes per second: at lower rates the time in which a bucket of one frame fills does not fit into the same form."""
MAX_RATE = 2**32 - 1
"""Bytes per second: the largest rate of a token bucket in the form that all kernels have."""
_HANDLE, _PRIORITY = 0xDA11_0000, 0xDA11
_ROOT, _INGRESS_PARENT, _INGRESS = 0xFFFF_FFFF, 0xFFFF_FFF1, 0xFFFF_0000
_ALL_PROTOCOLS = 3
_EVERY_PACKET = "0x0/0x0+0"


class ForeignQdiscError(OSError):
    """The interface has a queueing discipline of another program."""


@dataclass(frozen=True, slots=True)
class TapRates:
    """Bytes per second; None: not limited by us."""

    to_guest: int | None = None
    from_guest: int | None = None
    is_clean: bool = True
    """Whether nothing of ours is there but what these rates need."""

    def __str__(self) -> str:
        to_guest, from_guest = (rate or "no limit" for rate in (self.to_guest, self.from_guest))
        rest = "" if self.is_clean else ", and more that is not needed"
        return f"{to_guest} to the guest and {from_guest} from it, in bytes/s{rest}"

    def are(self, rate: int | None) -> bool:
        """Whether both directions have this rate, and nothing is half done."""
        return self.is_clean and self.to_guest == self.from_guest == rate


NO_RATES = TapRates()


def ifb_name(tap: str) -> str:
    """The interface through which what a guest sends is delayed."""
    return f"dvi-{hashlib.sha256(tap.encode()).hexdigest()[:10]}"


def observe_rates(namespace: Path | None, tap: str) -> TapRates:
    """What is set. ``namespace``: the file of the TAP's network namespace; None: the host's. Raises OSError."""

    def act() -> TapRates:
        with netlink() as route:
            return _rates(route, tap)

    return _in(namespace, act)


def set_rates(namespace: Path | None, tap: str, rate: int | None) -> None:
    """Limit both directions to ``rate`` bytes per second; None: take our limits away, also what a call that was cut off
    left. It is read back.

    Raises ForeignQdiscError, and has changed nothing then; OSError, and may have done a part of it, which the next call
    completes or takes away.
    """

    def act() -> None:
        with netlink() as route:
            if rate is None:
                _remove(route, tap)
            else:
                _limit(route, tap, rate)
            if not (now := _rates(route, tap)).are(rate):
                raise OSError(errno.EIO, f"it was set to {rate or 'no limit'}, but the kernel shows {now}")

    _in(namespace, act)


def _in(namespace: Path | None, act: Callable[[], Answer]) -> Answer:
    return in_a_thread(act) if namespace is None else inside(namespace, act)


def _rates(route: Any, tap: str) -> TapRates:
    ifb = ifb_name(tap)
    has_ifb = has_interface(ifb)
    if not has_interface(tap):
        return TapRates(is_clean=not has_ifb)
    index = interface_index(tap)
    root, ingress = _root(route, index), _ingress(route, index, has_ifb)
    redirected = ingress == "ours" and _is_redirected(route, index, interface_index(ifb)) if has_ifb else False
    sent = _own_rate(_root(route, interface_index(ifb))) if has_ifb else None
    is_clean = redirected if has_ifb else ingress != "ours"
    return TapRates(_own_rate(root), sent if redirected else None, is_clean)


def _limit(route: Any, tap: str, rate: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise OSError(errno.ERANGE, f"a limit must be {MIN_RATE} to {MAX_RATE} bytes/s, not {rate}")
    index, ifb = interface_index(tap), ifb_name(tap)
    root, ingress = _root(route, index), _ingress(route, index, has_interface(ifb))
    if root is not None and root["handle"] not in (0, _HANDLE):
        raise ForeignQdiscError(errno.EEXIST, f"{tap} has a {root.get_attr('TCA_KIND')} qdisc of another program")
    if ingress == "foreign":
        raise ForeignQdiscError(errno.EEXIST, f"{tap} has ingress filters of another program")
    if not has_interface(ifb):
        route.link("add", ifname=ifb, kind="ifb")
    through = interface_index(ifb)
    route.link("set", index=through, state="up")
    for each in (through, index):  # nothing is redirected to what does not delay it yet
        route.tc(
            "replace",
            "tbf",
            index=each,
            handle=_HANDLE,
            parent=_ROOT,
            rate=rate,
            burst=bucket_bytes(rate),
            latency=f"{TBF_LATENCY_MS}ms",
        )
    if _is_redirected(route, index, through):
        return
    if ingress is not None:  # of a call that was cut off, or to an IFB that was removed since
        route.tc("del", "ingress", index=index)
    route.tc("add", "ingress", index=index, handle=_INGRESS)
    route.tc(
        "add-filter",
        "u32",
        index=index,
        parent=_INGRESS,
        prio=_PRIORITY,
        protocol=_ALL_PROTOCOLS,
        target=0x10000,
        keys=[_EVERY_PACKET],
        action={"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": through},
    )


def _remove(route: Any, tap: str) -> None:
    ifb = ifb_name(tap)
    has_ifb = has_interface(ifb)
    if has_interface(tap):
        index = interface_index(tap)
        if _ingress(route, index, has_ifb) == "ours":
            route.tc("del", "ingress", index=index)
        if _own_rate(_root(route, index)) is not None:
            route.tc("del", index=index, parent=_ROOT)
    if has_ifb:
        route.link("del", index=interface_index(ifb))


def _qdiscs(route: Any, index: int) -> list[Any]:
    return [qdisc for qdisc in route.get_qdiscs(index=index) if qdisc["index"] == index]


def _root(route: Any, index: int) -> Any:
    """The discipline of what leaves an interface; the kernel's own has the handle 0."""
    return next((qdisc for qdisc in _qdiscs(route, index) if qdisc["parent"] == _ROOT), None)


def _own_rate(qdisc: Any) -> int | None:
    if qdisc is None or qdisc["handle"] != _HANDLE or qdisc.get_attr("TCA_KIND") != "tbf":
        return None
    return int(qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"])


def _ingress(route: Any, index: int, has_ifb: bool) -> str | None:
    """``ours`` or ``foreign``; None: there is none."""
    if not any(qdisc["parent"] == _INGRESS_PARENT for qdisc in _qdiscs(route, index)):
        return None
    priorities = {filter_["info"] >> 16 for filter_ in route.get_filters(index=index, parent=_INGRESS)}
    return "ours" if priorities == {_PRIORITY} or (not priorities and has_ifb) else "foreign"


def _is_redirected(route: Any, index: int, through: int) -> bool:
    """Whether all that comes from the guest goes through the IFB."""
    if not any(qdisc["parent"] == _INGRESS_PARENT for qdisc in _qdiscs(route, index)):
        return False
    return any(
        filter_["info"] >> 16 == _PRIORITY and _target(filter_) == through
        for filter_ in route.get_filters(index=index, parent=_INGRESS)
    )


def _target(filter_: Any) -> int | None:
    """The interface that a filter redirects to."""
    for name in ("TCA_OPTIONS", "TCA_U32_ACT", "TCA_ACT_PRIO_1", "TCA_ACT_OPTIONS"):
        filter_ = filter_.get_attr(name)
        if filter_ is None or not hasattr(filter_, "get_attr"):
            return None
    parameters = filter_.get_attr("TCA_MIRRED_PARMS")
    return None if parameters is None else int(parameters["ifindex"])
