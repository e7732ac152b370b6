"""Bindings: how a kind of device is made ready for a machine, as reversible steps.

- ``binding``: what every binding is; ``registry``: all bindings and step kinds, and which binding a device gets
- ``vfio``, ``sriov``, ``mdev``, ``vgpu``: the bindings
- ``drivers``, ``vf_settings``: kinds of steps; each reads and sets one property of the host. ``drivers`` also reads
  whether a prepared device is still as it was left
- ``checks``: refusals before the first step
- ``vfio_handover``, ``vgpu_parents``: choices of single bindings
"""
