"""The configurations near a given one: what a search in rounds tries first (cpu.py), and what tiles cost."""
