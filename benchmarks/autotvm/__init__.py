"""AutoTVM's best programs, from its public logs, and the configurations of ours that equal them."""
