"""The SPACE of ways: primitives as data, knobs, sketches by rule, spaces.

    space = space_of(operator, target)       # cpu_space or gpu_space, by the kind of target
    batch = space.sample(rng, 64)            # int64 [64, K], one configuration a row

Start at primitives.py, then space.py, then cpu_sketch.py and gpu_sketch.py. choose.py is the door.
"""

from cross.schedule.choose import space_of
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.gpu_sketch import gpu_space
from cross.schedule.knobs import Knob
from cross.schedule.packing import Packing
from cross.schedule.primitives import Schedule
from cross.schedule.space import Configuration, Constraint, ScheduleSpace
