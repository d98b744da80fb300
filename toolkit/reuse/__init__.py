"""ETO (PVLDB 15(2), 2022): tune operators by reusing what the tuned programs of others say of the hardware.

Two questions, answered apart: what to measure for an operator when the program of another is known (rounds/),
and who reuses whom at the least total cost (plan/, with the graph algorithms of graph/).
"""
