"""Operators rewritten into others that compute the same: partial sums, half storage, Winograd."""
