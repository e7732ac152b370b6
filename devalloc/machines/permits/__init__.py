"""The permit server: scaling agents ask it over HTTP how much CPU and memory their machines may have.

It writes a permit on the VirtualMachine before it answers. The ledgers of nodes exist in memory only, and are computed
from those objects.

- ``server``: serve while it has the lease, and watch what decisions depend on; ``doors``: listen, and know who asks;
  ``leader_server``: the server of a leading controller
- ``writer``: the one task that writes; ``decide``: decisions that are not sent before they are written
- ``ledger``, ``hosts``: what nodes have, and what their machines count for; ``runner_usage``: what their pods take
- ``sources``: where machines come from
- ``caller_auth``, ``leadership``: who may ask, and which server may answer
- ``migration``, ``store_migrator``: when machines must move, and their migrations as objects of the store
- ``settings``, ``metrics``: how the server is set, and what it reports
"""

from devalloc.machines.permits.hosts import Hosts, published
from devalloc.machines.permits.leadership import new_holder, permits_lease
from devalloc.machines.permits.ledger import Host
from devalloc.machines.permits.server import PermitServer, PermitServices
from devalloc.machines.permits.settings import Settings

__all__ = [
    "Host",
    "Hosts",
    "PermitServer",
    "PermitServices",
    "Settings",
    "new_holder",
    "permits_lease",
    "published",
]
