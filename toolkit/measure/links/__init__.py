"""Reaching a board's runtime: one Transport class for each kind of link. Start at kinds.py."""
