"""Features of loop nests for cost models. Start at choose.py; tests/plain_features.py is the specification."""
