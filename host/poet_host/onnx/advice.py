"""What to do about operators of ONNX that are not built."""

_OPERATORS: dict[str, tuple[str, ...]] = {
    "recurrent layers are not built: use convolutions along the time, or attention": (
        *("GRU", "LSTM", "RNN"),
    ),
    "the model is quantised: export it in float32, before it is": (
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
    ),
    "choices that depend on the data are not built: export the model for one shape of input, "
    "without branches and loops": ("If", "Loop", "NonZero", "Scan"),
    "it has no gradient: end the model in front of it": (
        *("ArgMax", "ArgMin", "NonMaxSuppression", "OneHot", "TopK"),
    ),
    "this activation is not built: use Relu, LeakyRelu, Gelu, HardSwish, or x * Sigmoid(x)": (
        *("Celu", "Elu", "Mish", "Selu", "Shrink", "Softplus", "Softsign", "ThresholdedRelu"),
    ),
    "this operator is not built: use Resize (nearest) and Conv in its place": (
        *("ConvTranspose", "MaxUnpool", "Upsample"),
    ),
    "this operator is not built: write it as Reshape, Transpose and MatMul": ("Einsum",),
    "this normalisation is not built: use BatchNormalization or LayerNormalization": (
        *("LRN", "LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
    ),
    "randomness but for Dropout is not built: leave it out of what is exported": (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    ),
}
_RUNTIMES = ("com.microsoft", "com.ms.internal")  # domains of what optimisers put in
ADVICE = {op: text for text, ops in _OPERATORS.items() for op in ops}


def advice(op: str) -> str:
    """Why a node with this operator cannot be trained, and what to try."""
    domain, _, name = op.rpartition(".")
    if domain and name:
        optimised = domain.startswith(_RUNTIMES)
        return f"operators of {domain} are not built: " + (
            "export the model without optimising it for a runtime"
            if optimised
            else "use ONNX's own in their place"
        )
    return ADVICE.get(op, "this operator is not built: use another in its place")
