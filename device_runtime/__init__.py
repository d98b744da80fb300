"""What runs on the board: Python >= 3.8, standard library and pure Python msgpack, shipped as one .pyz.

Read in this order: protocol (frames and messages), isolation (one child process per measurement),
cpu (what that child does), server (who calls what).
"""
