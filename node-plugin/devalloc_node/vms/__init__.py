"""From the VirtualMachine objects of a store to the machines of this node, and back.

- ``loop``: a queue of machines whose objects changed; ``reconciler``: one machine
- ``objects``, ``machine_claims``: the objects, and the claims of machines
- ``restarts``: machines that ended
- ``scaling``: machines that the agent or a controller scales; ``service_machines``: those without an object
"""

from devalloc_node.vms.loop import LoopSettings, VirtualMachineLoop
from devalloc_node.vms.service_machines import ServiceMachines

__all__ = ["LoopSettings", "ServiceMachines", "VirtualMachineLoop"]
