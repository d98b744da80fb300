"""Searches: which configurations to measure next. proposer.py holds their contract, search.py is the door."""
