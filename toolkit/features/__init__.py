"""What the loops look like in numbers. choose.py is the door; tests/plain_features.py the specification."""
