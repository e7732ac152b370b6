"""What people see of a fleet, and who had what of it.

- ``overview``: the fleet at a glance; ``page``: that on a page
- ``accounting``: device-seconds by month
"""
