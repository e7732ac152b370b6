"""The guest monitor: a small program that runs in a machine's guest, where memory may be short.

It measures memory, asks the agent for more, agrees or denies when it is to become less, brings plugged CPUs and memory
online, and serves the gauges that goals are computed from. It imports the standard library, `websockets`, and of
devalloc only what is as small as itself.
"""
