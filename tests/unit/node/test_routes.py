"""How a host gets to an address, by its kernel."""

from __future__ import annotations

import os

import pytest
from pyroute2 import IPRoute

from devalloc_node.host.linux import route_to
from tests.support.private_network import add_tap, private_network


def test_what_is_this_hosts_own_is_seen_to_be() -> None:
    way = route_to("127.0.0.1")
    assert (way.is_own, way.is_tap) == (True, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make interfaces")
def test_what_is_behind_a_tap_is_seen_to_be_and_its_own_end_is_the_hosts() -> None:
    with private_network():
        add_tap("tap9")
        with IPRoute() as host:
            host.route("add", dst="198.51.100.0/24", gateway="192.0.2.7")
        guest, beyond, own = (route_to(each) for each in ("192.0.2.7", "198.51.100.1", "192.0.2.1"))
        assert (guest.interface, guest.is_tap, guest.by_gateway, guest.is_own) == ("tap9", True, False, False)
        assert (beyond.is_tap, beyond.by_gateway) == (True, True)
        assert own.is_own
        assert route_to("203.0.113.1").interface is None
