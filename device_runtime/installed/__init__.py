"""Bundles on the board: their manifest and signature checked, their slots, and their models run."""
