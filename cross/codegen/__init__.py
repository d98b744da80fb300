"""Loops to code: llvm/ for CPUs (start at llvm/module.py), c/ for GPUs (start at c/gpu_code.py).

instructions.py has the instructions that llvm/ writes; scheduling/ puts those of a loop body in order.
What both printers know of a nest's buffers is in buffers.py.
"""
