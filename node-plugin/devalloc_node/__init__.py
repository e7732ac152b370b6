"""The node plugin: binds the devices that claims hold, hands them to machines and pods, and undoes it again."""
