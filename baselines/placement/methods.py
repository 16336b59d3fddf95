"""Names of the placement methods that learn nothing."""

METHODS: dict[str, str] = {
    "single_device": "hadoppler.baselines.placement.simple:single_device",
    "round_robin": "hadoppler.baselines.placement.simple:round_robin",
    "random": "hadoppler.baselines.placement.simple:random_placement",
    "tensor_parallel": "hadoppler.baselines.placement.parallelism:tensor_parallel",
    "pipeline": "hadoppler.baselines.placement.parallelism:pipeline",
    "critical_path": "hadoppler.baselines.placement.critical_path:critical_path",
    "heft": "hadoppler.baselines.placement.heft:heft",
    "peft": "hadoppler.baselines.placement.peft:peft",
    "etf": "hadoppler.baselines.placement.etf:etf",
    "dls": "hadoppler.baselines.placement.dls:dls",
    "min_min": "hadoppler.baselines.placement.min_min:min_min",
    "enumerative": "hadoppler.baselines.placement.enumerative:enumerative",
    "portfolio": "hadoppler.baselines.placement.portfolio:portfolio",
    "annealing": "hadoppler.baselines.placement.annealing:annealing",
    "cp_sat": "hadoppler.baselines.placement.cp_sat:cp_sat",
    "file": "hadoppler.baselines.placement.file:from_file",
}
"""Name -> ``module:function``."""
