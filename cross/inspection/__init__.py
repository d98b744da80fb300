"""What a kernel will do, read off its code: loops, spills and cycles of a CPU (cpu_loops.py), launches of
a GPU (gpu_launches.py), whether two objects hold the same machine code (fingerprint.py)."""
