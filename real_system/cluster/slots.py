"""Which workers a cluster gets: one for each of its GPUs, on a device of this machine or on the processor."""

from __future__ import annotations

from ...envs.cluster import Cluster
from ...envs.errors import ClusterError
from .backend import Slot
from .profile import find_devices


def slots_of(cluster: Cluster, *, emulated: bool = True) -> tuple[Slot, ...]:
    """A slot for each GPU of each node, by node and type.

    Emulated nodes compute on the processor. Otherwise a type that this machine has (``cpu``, ``v100``, ...) is given
    its devices, each once; all ``cpu`` are the one processor.

    Raises:
        ClusterError: a type has fewer devices here than the cluster says.
    """
    places = [
        (node, kind)
        for node in range(len(cluster.nodes))
        for kind in range(len(cluster.types))
        for _ in range(int(cluster.capacity[node, kind]))
    ]
    if emulated:
        return tuple(Slot(node, kind) for node, kind in places)
    found = find_devices()
    free = {kind: list(devices) for kind, devices in found.items()}
    slots = []
    for node, kind in places:
        name = cluster.types[kind]
        if name == "cpu":
            slots.append(Slot(node, kind))
            continue
        if not free.get(name):
            there = ", ".join(f"{len(devices)} {what}" for what, devices in found.items())
            raise ClusterError(
                f"cluster {cluster.name}: it has {int(cluster.gpus_of_type[kind])} {name}, this machine {there}; give "
                "types that are here, or emulate=true."
            )
        slots.append(Slot(node, kind, free[name].pop(0)))
    return tuple(slots)
