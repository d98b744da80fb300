"""ONE way as loops: see nodes.py for the grammar."""
