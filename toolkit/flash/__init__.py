"""A bundle put on a board, or taken back. Start at job.py (the doors); values.py is what goes in and out."""
