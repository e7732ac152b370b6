"""The permit server: scaling agents ask it over HTTP how much CPU and memory their machines may have.

It writes a permit on the VirtualMachine before it answers. The ledgers of nodes exist in memory only, and are computed
from those objects.

- ``server``: listen, and watch the lease, the objects and the hosts; ``leader_server``: the one of a leading controller
- ``decider``: the one task that decides; ``transaction``: decisions that are not sent before they are written
- ``ledgers``, ``vm_state``, ``hosts``: what nodes have, and what their machines count for
- ``caller_auth``, ``leadership``: who may ask, and which server may answer
- ``migration``, ``billing_usage``, ``metrics``: migrations, and what the server reports
"""

from devalloc.controller.permits.hosts import Host, Hosts, HostSource, published
from devalloc.controller.permits.leadership import new_holder, permits_lease
from devalloc.controller.permits.migration import Migrator
from devalloc.controller.permits.server import PermitServer, ServedMachines
from devalloc.controller.permits.settings import Settings

__all__ = [
    "Host",
    "HostSource",
    "Hosts",
    "Migrator",
    "PermitServer",
    "ServedMachines",
    "Settings",
    "new_holder",
    "permits_lease",
    "published",
]
