"""The boundary to the host: it is read through ``devalloc.inventory.sysfs`` and changed through ``Host`` alone.

- ``boundary``: every change, one call each; ``linux``: the real host; ``dry_run``: changes nothing
- ``files``, ``lock_folder``, ``plugin_lock``: the plugin's own files, and locks that the kernel releases
- ``block_devices``, ``routes``: questions to the kernel
"""
