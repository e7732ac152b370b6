"""From the VirtualMachine objects of a store to the machines of this node, and back."""

from devalloc_node.vms.loop import Settings, VirtualMachines

__all__ = ["Settings", "VirtualMachines"]
