"""Which operation runs on which device: graphs, devices, costs, and the simulator."""

from .bounds import LowerBounds, lower_bounds
from .graph import DataflowGraph, GraphBuilder, GraphInput
from .kernel import Kernel, Reference, Symbol, TensorType, View
from .placement import Placement, Plan
from .problem import PlacementProblem
from .readers import read_graph, write_graph
from .readers.torch_export import from_module
from .simulator import Schedule, Transfers, makespans, simulate
from .topology import Device, Topology
from .workloads import make_graph

__all__ = [
    "DataflowGraph",
    "Device",
    "GraphBuilder",
    "GraphInput",
    "Kernel",
    "LowerBounds",
    "Placement",
    "PlacementProblem",
    "Plan",
    "Reference",
    "Schedule",
    "Symbol",
    "TensorType",
    "Topology",
    "Transfers",
    "View",
    "from_module",
    "lower_bounds",
    "make_graph",
    "makespans",
    "read_graph",
    "simulate",
    "write_graph",
]
