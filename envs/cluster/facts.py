"""What the throughput estimate needs to know of GPU types and models, with where each number comes from."""

from __future__ import annotations

from dataclasses import dataclass

PCIE_3, PCIE_4, PCIE_5 = 15.75e9, 31.5e9, 63.0e9
"""Bytes/s of 16 lanes in one direction, by the PCI Express standard."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU type; the first two are its performance-memory index.

    Attributes:
        flops_per_s: peak FLOP/s in single precision (no tensor cores).
        memory_bytes_per_s: peak bandwidth of its memory.
        pcie_bytes_per_s: between host and GPU, in one direction.
        source: where the numbers come from.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model in training.

    Attributes:
        flops: forward FLOP a sample (a multiply-add counts 2).
        bytes_moved: bytes a sample that a step reads from and writes to the GPU's memory.
        input_bytes: bytes a sample that go from the host to the GPU.
        parameter_bytes: of the gradients that workers exchange in each step.
        batch_size: samples a step where a job's kind names no batch size.
        source: where the numbers come from.
    """

    flops: float
    bytes_moved: float
    input_bytes: float
    parameter_bytes: float
    batch_size: int = 1
    source: str = ""


GPUS: dict[str, GpuFacts] = {
    "k80": GpuFacts(4.37e12, 240e9, PCIE_3, "NVIDIA Tesla K80 board specification, half of it: one of two GPUs, boost"),
    "p4": GpuFacts(5.5e12, 192e9, PCIE_3, "NVIDIA Tesla P4 data sheet"),
    "p100": GpuFacts(10.6e12, 732e9, PCIE_3, "NVIDIA Tesla P100 white paper, SXM2 16 GB"),
    "v100": GpuFacts(15.7e12, 900e9, PCIE_3, "NVIDIA Tesla V100 data sheet, SXM2"),
    "t4": GpuFacts(8.1e12, 320e9, PCIE_3, "NVIDIA T4 data sheet"),
    "rtx2080ti": GpuFacts(13.45e12, 616e9, PCIE_3, "NVIDIA Turing white paper, reference clocks"),
    "rtx3090": GpuFacts(35.6e12, 936e9, PCIE_4, "NVIDIA Ampere GA102 white paper"),
    "rtx4090": GpuFacts(82.6e12, 1008e9, PCIE_4, "NVIDIA Ada white paper"),
    "a10": GpuFacts(31.2e12, 600e9, PCIE_4, "NVIDIA A10 data sheet"),
    "a40": GpuFacts(37.4e12, 696e9, PCIE_4, "NVIDIA A40 data sheet"),
    "a100": GpuFacts(19.5e12, 1555e9, PCIE_4, "NVIDIA A100 data sheet, SXM 40 GB"),
    "l4": GpuFacts(30.3e12, 300e9, PCIE_4, "NVIDIA L4 data sheet"),
    "l40s": GpuFacts(91.6e12, 864e9, PCIE_4, "NVIDIA L40S data sheet"),
    "h100": GpuFacts(67e12, 3350e9, PCIE_5, "NVIDIA H100 data sheet, SXM"),
    "h200": GpuFacts(67e12, 4800e9, PCIE_5, "NVIDIA H200 data sheet, SXM"),
}
"""GPU type -> its published figures."""

MODELS: dict[str, ModelFacts] = {
    "ResNet-18": ModelFacts(
        1.11e9, 40e6, 3 * 32 * 32 * 4, 4 * 11.17e6,
        source="CIFAR-10, 32 x 32: 0.56 G multiply-adds and 11.2 M parameters, published for this variant; bytes "
        "moved: our estimate, 0.56 M convolution outputs of 4 bytes, each read or written 18 times",
    ),
    "ResNet-50": ModelFacts(
        8.2e9, 800e6, 3 * 224 * 224 * 4, 4 * 25.6e6,
        source="ImageNet, 224 x 224: 4.1 G multiply-adds, 25.6 M parameters and 11.1 M convolution outputs, published; "
        "bytes moved: our estimate, as for ResNet-18",
    ),
    "Transformer": ModelFacts(
        2.5e9, 37e6, 2 * 25 * 8, 4 * 49e6,
        source="base model (6 + 6 layers, width 512, inner 2048), published; our estimate: Multi30k sentences of 25 "
        "tokens with padding, a vocabulary of 9,500, and the bytes moved",
    ),
    "LM": ModelFacts(
        5.1e8, 37e6, 2 * 35 * 8, 4 * 13.95e6,
        source="PyTorch's word language model (2 LSTM layers of 200, 35 tokens a sample, Wikitext-2's vocabulary of "
        "33,278); our count, nine tenths of it the output layer",
    ),
    "Recommendation": ModelFacts(
        1.6e7, 0.64e6, 20108 * 4, 4 * 8.0e6,
        source="autoencoder of ML-20M's 20,108 items through 200 units; our count",
    ),
    "A3C": ModelFacts(
        1.2e7, 2e6, 80 * 80 * 4, 4 * 1.0e6, 20,
        source="four convolutions of 32 channels on 80 x 80 frames and a recurrent layer of 256, 20 frames a step; our "
        "count; the game itself, on the host, is not in it",
    ),
    "CycleGAN": ModelFacts(
        7.2e11, 14e9, 2 * 3 * 256 * 256 * 4, 4 * 28.3e6,
        source="256 x 256 images: six passes of the generator of nine blocks (57 G multiply-adds each, published) and "
        "six of the discriminator; bytes moved: our estimate",
    ),
}  # fmt: skip
"""Model -> what is published of it, and our estimates where nothing is."""
