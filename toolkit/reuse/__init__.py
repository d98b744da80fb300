"""ETO (PVLDB 15(2), 2022): tune operators by reusing what the tuned programs of others say of the hardware.

Start at arborescence.py and steiner.py: who reuses whom at the least total cost.
"""
