"""Which operation runs on which device: graphs, devices, costs, and the simulator."""

from .bounds import LowerBounds, lower_bounds
from .device import Device
from .env import DevicePlacementEnv
from .episode_rules import EpisodeRules
from .episodes import EpisodeBatch
from .features import DEVICE_FEATURES, EDGE_FEATURES, NODE_FEATURES
from .graph import DataflowGraph, GraphInput
from .graph_builder import GraphBuilder
from .kernel import Kernel, Reference, Symbol, TensorType, View
from .placement import Placement, Plan
from .problem import PlacementProblem
from .readers import read_graph, write_graph
from .readers.torch_export import from_module
from .replaying import replay
from .saved_problem import load_problem, save_problem
from .simulator import Schedule, Transfers, makespans, simulate
from .suites import PlacementSuite, make_suite
from .topology import Topology
from .vector_env import DevicePlacementVectorEnv
from .workloads import make_graph
from .wrappers import FlatAction, SelectThenPlace

__all__ = [
    "DEVICE_FEATURES",
    "EDGE_FEATURES",
    "NODE_FEATURES",
    "DataflowGraph",
    "Device",
    "DevicePlacementEnv",
    "DevicePlacementVectorEnv",
    "EpisodeBatch",
    "EpisodeRules",
    "FlatAction",
    "GraphBuilder",
    "GraphInput",
    "Kernel",
    "LowerBounds",
    "Placement",
    "PlacementProblem",
    "PlacementSuite",
    "Plan",
    "Reference",
    "Schedule",
    "SelectThenPlace",
    "Symbol",
    "TensorType",
    "Topology",
    "Transfers",
    "View",
    "from_module",
    "load_problem",
    "lower_bounds",
    "make_graph",
    "make_suite",
    "makespans",
    "read_graph",
    "replay",
    "save_problem",
    "simulate",
    "write_graph",
]
