"""What this node holds of claims, and what has changed, for watchers."""
