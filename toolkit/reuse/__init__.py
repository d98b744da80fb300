"""ETO (PVLDB 15(2), 2022): tune operators by reusing what the tuned programs of others say of the hardware.

Two questions, answered apart: what to measure for an operator when the program of another is known
(proposer.py, rounds.py), and who reuses whom at the least total cost (plan.py, by arborescence.py,
bridges.py and steiner.py).
"""
