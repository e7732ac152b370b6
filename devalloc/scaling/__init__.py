"""Scaling of CPU and memory: resources, bounds, goals, permits, and the wire types of the protocols that speak of them.

Pure: no I/O, no clock but the one that is passed in. Amounts are integers, thousandths of a CPU and bytes; instants and
durations are integers too, in milliseconds of whatever clock the caller has.
"""
