"""The server of permits: agents ask it over HTTP how much CPU and memory their machines may have.

What it grants is written on the VirtualMachine before it is told; the ledger of a node in memory is made of those
objects, and is forgotten with the process.
"""

from devalloc.controller.permits.hosts import Host, Hosts, published
from devalloc.controller.permits.migration import Migrator
from devalloc.controller.permits.server import PermitServer
from devalloc.controller.permits.settings import Settings

__all__ = ["Host", "Hosts", "Migrator", "PermitServer", "Settings", "published"]
