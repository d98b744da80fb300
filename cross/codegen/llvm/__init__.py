"""LLVM IR and machine code for CPUs. Start at module.py, which writes the IR; objects.py compiles it."""
