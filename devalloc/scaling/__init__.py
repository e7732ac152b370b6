"""Scaling of CPU and memory: bounds, goals, decisions, permits, and the messages of the scaling protocols.

Pure: no I/O, and no clock but the one that is passed in. Amounts are integers, thousandths of a CPU and bytes;
instants and durations are integers too, in milliseconds of any clock that the caller has.

- ``goals``: how many units a machine should have, by its guest's load and requests and its bounds
- ``state``, ``actions``: what the agent knows of one machine, and what it does next
- ``resources``, ``config``, ``agent_config``: what users and admins set
- ``metrics``: what guests report; ``health``: how far scaling is, and whether it is stuck
- ``messages``, ``versions``, ``peer_json``: the protocols
- ``permits``: the arithmetic of the permit server
"""
