"""Graph algorithms over dense cost matrices: arborescence.py, and steiner.py on top of it."""
