"""Facts about boards: what to generate code for, how to reach it, how to measure on it.

Start at `boards.board.load(name)`; `boards.target.Target` is what the compiler is given.
"""
