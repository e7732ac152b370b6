"""CEL of resource.k8s.io: selectors of device classes and requests, as Kubernetes 1.37 understands them.

Parsed and type-checked by the official C++ runtime (``cel-expr-python``, imported on the first compilation), evaluated
here: the runtime's Python binding can neither hold values of types of our own, such as quantities and versions, nor
bound the cost of an evaluation.
"""

from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.errors import CompileError, EvaluationError, ExhaustedError
from devalloc_solver.cel.kubernetes.device import CelDevice, Scalar, Value
from devalloc_solver.cel.kubernetes.program import COST_LIMIT, Program, compile
from devalloc_solver.cel.kubernetes.reads import ALLOW_MULTIPLE, DRIVER, DeviceField, Equality

__all__ = [
    "ALLOW_MULTIPLE",
    "COST_LIMIT",
    "DRIVER",
    "Budget",
    "CelDevice",
    "CompileError",
    "DeviceField",
    "Equality",
    "EvaluationError",
    "ExhaustedError",
    "Program",
    "Scalar",
    "Value",
    "compile",
]
