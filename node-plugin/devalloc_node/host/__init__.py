"""The boundary to the host: it is read through ``devalloc.inventory.sysfs`` and changed through ``Host`` alone.

- ``boundary``: every change, one call each; and a host that refuses all; ``linux``: the real
  host, and questions to its kernel
- ``vfio_reset``, ``traffic``, ``firewall``, ``network_namespace``: resets, rates, packet filters and namespaces
- ``files``, ``lock_folder``: the plugin's own files, and locks that the kernel releases
"""
