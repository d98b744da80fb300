"""Convolutions by Winograd's algorithm. form.py rewrites an operator; the transforms are in matrices.py."""
