"""The agent: what of CPU and memory each machine of this node should have, and how it gets there."""
