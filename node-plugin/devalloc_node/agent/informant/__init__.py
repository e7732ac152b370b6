"""The agent's end of the informant protocol, for guests of before the guest monitor."""
