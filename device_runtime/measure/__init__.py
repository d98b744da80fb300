"""What the child of a measurement does: load a kernel, call it, check its outputs, time it."""
