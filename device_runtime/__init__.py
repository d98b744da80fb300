"""What runs on the board: Python >= 3.8, standard library and pure Python msgpack, shipped as one .pyz.

Read in this order: protocol (frames and messages), isolation (one child process per measurement),
trial, cpu and gpu_measure (what that child does), variants and run (installed models), server (who calls
what).
"""
