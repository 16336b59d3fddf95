"""Jobs on clusters of unequal GPUs: nodes, throughputs, traces, and the round simulator."""

from .bounds import ttd_bounds
from .cluster import Cluster, Node
from .env import ClusterSchedulingEnv
from .episode_rules import EpisodeRules
from .estimation import disturbed, estimate_table, prior_table
from .estimator import RateEstimator
from .failures import NodeEvent, draw_failures
from .features import global_feature_names, job_feature_names
from .forks import ForkLedger, split_steps
from .gang_speed import gang_rate
from .generators import make_workload
from .job import Job
from .replaying import replay
from .result import ClusterResult, JobTable, RoundLog
from .rules import SimulationRules
from .scheduler import Allocation, ClusterView, FractionalPolicy, Scheduler
from .sequential import SequentialAllocation
from .simulation import Simulation
from .simulator import simulate
from .suites import ClusterSuite, World, make_suite
from .throughput import ThroughputTable
from .traces import MachineUse, read_pai_machines, read_workload
from .workload import Rejected, Workload

__all__ = [
    "Allocation",
    "Cluster",
    "ClusterResult",
    "ClusterSchedulingEnv",
    "ClusterSuite",
    "ClusterView",
    "EpisodeRules",
    "ForkLedger",
    "FractionalPolicy",
    "Job",
    "JobTable",
    "MachineUse",
    "Node",
    "NodeEvent",
    "RateEstimator",
    "Rejected",
    "RoundLog",
    "Scheduler",
    "SequentialAllocation",
    "Simulation",
    "SimulationRules",
    "ThroughputTable",
    "Workload",
    "World",
    "disturbed",
    "draw_failures",
    "estimate_table",
    "gang_rate",
    "global_feature_names",
    "job_feature_names",
    "make_suite",
    "make_workload",
    "prior_table",
    "read_pai_machines",
    "read_workload",
    "replay",
    "simulate",
    "split_steps",
    "ttd_bounds",
]
