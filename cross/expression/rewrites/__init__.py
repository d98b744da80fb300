"""Operators rewritten into others that compute the same: partial sums, joined rows, Winograd's."""
