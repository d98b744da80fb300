"""The compiler g(e, s): from an index expression and a configuration to machine code for a target.

Rooms in program order: expression (what), schedule (the space of ways), loopnest (one way as loops),
codegen (loops to code), native (the C that every CPU artifact carries), compile (the door).
"""
