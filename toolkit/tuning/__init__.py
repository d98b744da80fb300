"""Algorithm 1 over the operators of a model: which is tuned next, what is tried, measured and learned."""
