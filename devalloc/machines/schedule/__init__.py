"""Machines among the claims: which node runs a machine is decided together with the devices of its claims.

A machine that waits for a node becomes one more claim of the solver's input, on the pools of what nodes have for
machines, in one group with its own claims. So one solve places all of it, and one commit writes it.
"""
