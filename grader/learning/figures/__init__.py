"""Interactive figures, drawn from the learner's own functions: a slider or a choice shows one state at a time.

    from grader.learning import figures
    figures.trace_stepper(f, x)  # the lines of f, and the equations that they add to the jaxpr

A function of this package computes the data of its figure with JAX. The scripts beside it only draw them.
"""

from grader.learning.figures.axis_mover import axis_mover
from grader.learning.figures.backward_memory import backward_memory
from grader.learning.figures.collective_steps import collectives
from grader.learning.figures.pipeline_timeline import pipeline
from grader.learning.figures.trace_stepper import trace_stepper

__all__ = ["axis_mover", "backward_memory", "collectives", "pipeline", "trace_stepper"]
