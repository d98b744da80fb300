"""Measuring: build programs, run them on a board, and read their times back."""
