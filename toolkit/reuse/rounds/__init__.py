"""What to measure for an operator when the program of another is known (ETO, section 5): proposer.py."""
