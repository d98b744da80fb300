"""What happened, to look at: the progress display, the table of operators, the same as JSON."""
