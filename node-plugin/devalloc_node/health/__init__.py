"""The health of devices: observed, and reported on claims."""
