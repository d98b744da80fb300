"""Operators rewritten into others that compute the same: compositions, parts, partial sums, joined rows, half
storage, Winograd."""
