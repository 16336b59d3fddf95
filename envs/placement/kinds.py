"""The kinds of operations: the one table that readers, workloads and topologies share.

A device may differ in speed per kind (``Device.kind_flops_per_s``).
"""

from __future__ import annotations

import re

KINDS = {
    "matmul": "products of matrices, single or batched",
    "convolution": "convolutions and their gradients",
    "attention": "scaled dot-product attention as one operation, and its gradient",
    "softmax": "softmax, logarithmic softmax and their gradients",
    "normalisation": "layer, group and batch normalisation and their gradients",
    "reduction": "sums, means, extrema, pooling, losses, scans",
    "elementwise": "one result per element",
    "gather": "reads or writes rows by index: embeddings and their gradients",
    "copy": "moves or converts data: clones, concatenations, padding, casts, re-formed tiles",
    "create": "makes a tensor from nothing: constants, ranges, random numbers",
    "other": "anything else",
}
"""Kind -> what belongs to it."""

_ATEN = {
    "matmul": "mm bmm addmm baddbmm addbmm _addmm_activation _scaled_mm _int_mm matmul linear dot vdot mv addmv addr",
    "softmax": "_softmax _log_softmax _safe_softmax softmax log_softmax _softmax_backward_data"
    " _log_softmax_backward_data",
    "reduction": "sum mean amax amin max min prod var std var_mean std_mean any all argmax argmin logsumexp norm"
    " linalg_vector_norm cumsum cumprod nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"
    " max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d"
    " _adaptive_avg_pool2d_backward avg_pool1d avg_pool3d topk sort count_nonzero adaptive_max_pool2d"
    " adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward max_pool3d_with_indices"
    " max_pool3d_with_indices_backward avg_pool3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward"
    " multinomial cummax cummin aminmax median",
    "elementwise": "native_dropout native_dropout_backward polar upsample_bilinear2d upsample_bilinear2d_backward"
    " upsample_bicubic2d upsample_bicubic2d_backward upsample_linear1d upsample_trilinear3d grid_sampler_2d"
    " grid_sampler_2d_backward grid_sampler_3d fake_quantize_per_tensor_affine_cachemask"
    " fake_quantize_per_channel_affine_cachemask",
    "gather": "embedding embedding_dense_backward index index_select gather index_put _unsafe_index_put _unsafe_index"
    " index_add scatter scatter_add scatter_reduce masked_scatter take one_hot _embedding_bag _embedding_bag_backward"
    " index_copy index_fill",
    "copy": "clone _to_copy copy cat stack constant_pad_nd repeat flip roll slice_scatter select_scatter slice_backward"
    " select_backward as_strided_scatter diagonal_scatter contiguous lift_fresh_copy expand_copy upsample_nearest2d"
    " tril triu replication_pad1d_backward replication_pad2d_backward reflection_pad1d_backward"
    " reflection_pad2d_backward upsample_nearest1d upsample_nearest2d_backward",
    "create": "full arange zeros ones empty scalar_tensor full_like zeros_like ones_like empty_like new_zeros new_ones"
    " new_full new_empty rand randn randint rand_like randn_like linspace eye empty_strided bernoulli"
    " empty_permuted new_empty_strided randperm",
}  # fmt: skip

_BY_NAME = {name: kind for kind, names in _ATEN.items() for name in names.split()}

_MODULES = {
    "Linear": "matmul", "LSTM": "matmul", "GRU": "matmul", "RNN": "matmul", "EmuBidirLSTM": "matmul",
    "Classifier": "matmul", "RecurrentAttention": "attention", "Embedding": "gather", "Softmax": "softmax",
    "Concat": "copy", "View": "copy", "__getitem__": "copy", "Size": "copy",
    "Input": "create", "Input0": "create", "Input1": "create", "Input2": "create",
    "Add": "elementwise", "ReLU": "elementwise", "Dropout": "elementwise", "GELU": "elementwise",
}  # fmt: skip


def aten_kind(name: str, *, pointwise: bool = False) -> str:
    """Kind of an ATen operator, by its name without namespace and overload, such as ``mm``.

    Args:
        pointwise: the kind of operators that no rule names is ``elementwise`` instead of ``other``.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    for part, kind in (("attention", "attention"), ("conv", "convolution"), ("_norm", "normalisation")):
        if part in name:
            return kind
    return "elementwise" if pointwise else "other"


def module_kind(description: str) -> str:
    """Kind of a layer by the text of its module, such as ``Conv2d(3, 64)``."""
    name = re.split(r"[(\s]", description.strip(), maxsplit=1)[0]
    if name in _MODULES:
        return _MODULES[name]
    for part, kind in (("Conv", "convolution"), ("Norm", "normalisation"), ("Pool", "reduction")):
        if part in name:
            return kind
    return "other"
