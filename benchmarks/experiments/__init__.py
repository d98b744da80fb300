"""The studies of the AutoTVM paper, run again: studies.py says what, __main__.py has the commands."""
