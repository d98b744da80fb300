"""Loops to code. llvm_ir.py writes LLVM IR for CPUs, objects.py turns it into machine code."""
