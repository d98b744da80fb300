"""The SPACE of ways: primitives as data, knobs, sketches, spaces."""
