"""Scaling of CPU and memory: bounds, goals, decisions, permits, and the messages of the scaling protocols.

Pure: no I/O, and no clock but the one that is passed in. Amounts are integers, thousandths of a CPU and bytes;
instants and durations are integers too, in milliseconds of any clock that the caller has.

- ``goals``: how many units a machine should have; ``desired``: with its guest's requests and its bounds
- ``state``, ``actions``: what the agent knows of one machine, and what it does next
- ``bounds``, ``config``, ``agentconfig``: what users and admins set
- ``metrics``, ``guest_report``, ``working_set``: what guests report
- ``messages``, ``versions``, ``compat``, ``peer_json``, ``wire_amounts``: the protocols
- ``permits``: the arithmetic of the permit server
"""
