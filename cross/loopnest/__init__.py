"""ONE way as loops: see nodes.py for the grammar.

programs = Programs(cpu_space(operator, target))
nest = programs.nest(configuration)      # lowered once per structure, bound per configuration
print(to_text(nest)); verify(nest)
"""

from cross.loopnest.bind import ParametricNest, bind
from cross.loopnest.lower import lower
from cross.loopnest.nodes import LoopNest
from cross.loopnest.printer import to_text
from cross.loopnest.program import Programs
from cross.loopnest.verify import verify
