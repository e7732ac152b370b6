"""The boundary to the host: it is read through ``devalloc.inventory.sysfs`` and changed through ``Host`` alone."""
