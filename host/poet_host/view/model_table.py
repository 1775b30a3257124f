"""The tables of a model: its layers, and its training options."""

from collections.abc import Sequence

from ..graph.summary import Layer, Summary


def model_rows(summary: Summary, *, is_assumed: bool) -> list[tuple[str, str]]:
    """Return the rows of a table of the training options. `is_assumed`: the loss is the default."""
    rates = ", ".join(
        f"{name.replace('_', ' ')} {value:g}" for name, value in summary.rates.items()
    )
    kept = {
        "gradients that wait for their limit, at once": summary.waiting_bytes,
        "sums of gradients until the next update": summary.accumulated_bytes,
    }
    assumed = " (default; --loss selects another)" if is_assumed else ""
    return [
        ("parameters", f"{summary.parameters:,}, {summary.trained_parameters:,} of them trained"),
        ("MACs of a sample in the forward pass", f"{summary.macs:,}"),
        ("MACs of a sample in a training step", f"{summary.training_macs:,}"),
        ("loss", f"{summary.loss}{assumed}"),
        ("optimizer", f"{summary.optimizer}: {rates}"),
        *((what, f"{size_bytes:,} bytes") for what, size_bytes in kept.items() if size_bytes),
        ("batch", f"{summary.batch:,} of {'x'.join(map(str, summary.data_shape))}"),
    ]


def _trained(layer: Layer) -> str:
    if layer.trained == "partly":
        return f"all but {', '.join(layer.frozen)}"
    return layer.trained + (", statistics frozen" if layer.statistics == "frozen" else "")


def layer_rows(layers: Sequence[Layer], max_rows: int | None) -> list[tuple[str, ...]]:
    """Return the rows of a table of at most `max_rows` layers: the first and the last ones."""
    rows: list[tuple[str, ...]] = [
        (
            layer.name,
            layer.kind,
            "x".join(map(str, layer.shape)),
            f"{layer.parameters:,}" if layer.parameters else "",
            f"{layer.macs:,}" if layer.macs else "",
            _trained(layer),
        )
        for layer in layers
    ]
    if max_rows is None or len(rows) <= max_rows:
        return rows
    half = max_rows // 2
    omitted = f"... {len(rows) - 2 * half:,} more, see `poet-host info`"
    return [*rows[:half], (omitted, "", "", "", "", ""), *rows[-half:]]
