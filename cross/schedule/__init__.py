"""The SPACE of ways: primitives as data, knobs, sketches by rule, spaces.

    space = cpu_space(operator, target)
    space = gpu_space(operator, target)      # of an OpenCL or CUDA target
    batch = space.sample(rng, 64)            # int64 [64, K], one configuration a row

Start at primitives.py, then space.py, then cpu_sketch.py and gpu_sketch.py.
"""

from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.gpu_sketch import gpu_space
from cross.schedule.packing import Packing
from cross.schedule.primitives import Schedule
from cross.schedule.space import Configuration, Constraint, Knob, ScheduleSpace

__all__ = [
    "Configuration",
    "Constraint",
    "Knob",
    "Packing",
    "Schedule",
    "ScheduleSpace",
    "cpu_space",
    "gpu_space",
]
