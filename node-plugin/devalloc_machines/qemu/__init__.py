"""Machines: QEMU, started or adopted, through QMP.

- ``lifecycle``: start, adopt, scale, stop, delete; over ``records``, and ``registry``, which also knows machines that
  the journal lost
- ``command_line``, ``launch``, ``spawn``, ``adoption``: how QEMU comes to run, and outlives the plugin
- ``qmp``: QEMU's monitor; ``attachment``, ``emulated_devices``, ``hotplug``, ``pci``: devices
- ``vcpu``, ``memory``, ``resources``: CPUs and memory of a running machine
- ``pci_layout``: where PCI devices of a machine lie; ``cloned_disks``: disks of its own
- ``guest_report``: what a guest reports
- ``allowed_paths``, ``confinement``, ``user_ids``: what a machine may name, take and see of its host;
  ``machine_files``: its own files
- ``migration``, ``migration_tls``: how machines move to another node while they run;
  ``migration_blockers``: which can; ``migration_offer``: what the source offers, and whether the target fits;
  ``migrated_firmware``: UEFI variables and TPM
- ``exits``: how machines end
"""
