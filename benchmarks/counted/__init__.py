"""What plans of networks say without running anything: bytes moved, cycles, memory, balance of threads."""
