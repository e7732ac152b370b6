"""Machines: QEMU, started or adopted, through QMP.

- ``lifecycle``: start, adopt, scale, stop, delete; over ``records``, and ``registry``, which also knows machines that
  the journal lost
- ``command_line``, ``launch``, ``spawn``, ``adoption``: how QEMU comes to run, and outlives the plugin
- ``qmp``: QEMU's monitor; ``attachment``, ``emulated_devices``, ``hotplug``, ``pci``: devices
- ``vcpu``, ``memory``, ``resources``: CPUs and memory of a running machine
- ``machine_files``, ``confinement``, ``user_ids``: what a machine may name, take and see of its host
- ``migration``, ``migration_tls``: how machines move to another node while they run;
  ``migration_blockers``: which can; ``moved_devices``: their passed-through devices
- ``exits``: how machines end
"""
