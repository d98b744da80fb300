"""Features of loop nests. Start at choose.py; tests/plain_features.py is the specification."""
