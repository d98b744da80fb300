"""The order of the instructions of a loop body: a list of them in, a list out. Start at steps.ordered."""
