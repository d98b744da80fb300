"""Families of operators written in the language: convolutions, dense, pooling, norms, ..."""
