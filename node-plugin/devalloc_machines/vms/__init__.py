"""From the VirtualMachine objects of a store to the machines of this node, and back.

- ``loop``: a queue of machines whose objects changed; ``situation``: what is known of one; ``steps``: what is done then
- ``objects``, ``machine_claims``: the objects, and the claims of machines
- ``guest_reports``: what guests report; ``status``: what is written of a machine into its object
- ``start_refusals``: pauses before starts; ``fencing``: what was taken away from this node
- ``migrations``: machines that move between nodes while they run; ``migration_objects``: what the store has of that;
  ``moving_claims``: the claims of such machines
- ``scaling``: machines that the agent or a controller scales; ``requests``: those without an object
"""

from devalloc_machines.vms.loop import LoopExecution, LoopSettings, VirtualMachineLoop
from devalloc_machines.vms.migrations import MigrationLoop
from devalloc_machines.vms.requests import RequestLoop
from devalloc_machines.vms.steps import MachineControls

__all__ = ["LoopExecution", "LoopSettings", "MachineControls", "MigrationLoop", "RequestLoop", "VirtualMachineLoop"]
