"""What to try next. proposer.py holds the contract, annealing.py the learned search; baselines beside it."""
