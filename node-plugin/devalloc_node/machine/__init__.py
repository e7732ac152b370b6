"""Machines: QEMU, started or adopted, through QMP."""
