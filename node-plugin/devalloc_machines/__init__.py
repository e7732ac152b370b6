"""Machines of a node: QEMU, VirtualMachine objects, the scaling agent, what runs in guests, and warm setups.

- ``part``: all of it as a part of a node, whose own package knows no machines
- ``qemu``: QEMU and QMP; ``service``: operations on machines and the gRPC methods for them
- ``vms``: from objects of a store to machines; ``agent``: their scaling; ``guest``: the guest monitor
- ``warm``: setups that are ready before a machine needs them
"""
