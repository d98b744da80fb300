"""The language of index expressions. Start at terms.py, then tensor.py, functions.py, operator.py."""
