"""f̂: predicting which configurations are fast. The contract is in base.py, the default model in gbt.py."""
