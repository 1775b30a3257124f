"""Advice for ONNX operators that are not supported."""

# Operators of whole numbers and types, which are supported if the data does not change the result.
OF_SIZES = (
    *("CastLike", "Ceil", "ConstantOfShape", "CumSum", "Floor", "Mod", "Range", "Shape", "Size"),
)
_OPERATORS: dict[str, tuple[str, ...]] = {
    "the model is quantised: export it in float32, before quantisation": (
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
    ),
    "control flow that depends on the data is not supported: export the model for one shape of "
    "input, without branches and loops": ("If", "Loop", "NonZero", "Scan"),
    "this operator has no gradient: end the model before it": (
        *("ArgMax", "ArgMin", "NonMaxSuppression", "OneHot", "TopK"),
    ),
    "this activation is not supported: use Relu, LeakyRelu, Elu, Gelu, Mish or HardSwish": (
        *("Shrink", "Softsign", "ThresholdedRelu"),
    ),
    "this operator is not supported: use Resize instead": ("MaxUnpool", "Upsample"),
    "this normalisation is not supported: use BatchNormalization or LayerNormalization": (
        *("LRN", "LpNormalization", "MeanVarianceNormalization"),
    ),
    "this operator is not supported: use Abs or Mul, and ReduceSum": (
        *("ReduceL1", "ReduceSumSquare"),
    ),
    "single elements cannot be read or written: use Slice and Concat": (
        *("GatherElements", "ScatterElements", "ScatterND"),
    ),
    "the exporter wrote this operator for positions, sizes or types that depend on the data: "
    "compute them from fixed sizes": OF_SIZES,
    "random operators other than Dropout are not supported: remove the operator, or make its "
    "random numbers another input of the model": (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    ),
}
_RUNTIMES = ("com.microsoft", "com.ms.internal")  # operator domains of graph optimisers
ADVICE = {op: text for text, ops in _OPERATORS.items() for op in ops}


def advice(op: str) -> str:
    """Return why a node with this operator cannot be trained, and what to do."""
    domain, _, name = op.rpartition(".")
    if domain and name:
        optimised = domain.startswith(_RUNTIMES)
        return f"operators of {domain} are not supported: " + (
            "export the model without optimising it for a runtime"
            if optimised
            else "use ONNX's own operators instead"
        )
    return ADVICE.get(
        op,
        "this operator is not supported: find the function of the model that the exporter wrote "
        "with it, and use supported operators (listed below) instead",
    )
