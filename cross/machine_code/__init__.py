"""What a kernel's machine code will do, read off its assembly: loops, instructions, spills, cycles."""
