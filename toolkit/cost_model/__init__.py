"""f̂: predicting which configurations are fast. The contract is in base.py, the door in choose.py."""
