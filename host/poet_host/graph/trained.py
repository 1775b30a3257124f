"""Choose the parameters that a training changes."""

from fnmatch import fnmatchcase

from ..errors import BadInput, listed
from .builder import Model
from .lora import WORD, rank_of, with_adapters
from .operators import OPERATORS

BATCHNORM = ("train", "frozen")
HOW = "all, last:N, lora:RANK, patterns of parameter names, and !PATTERN to leave some out"


def model_to_train(model: Model, train: str, batchnorm: str) -> tuple[Model, frozenset[str]]:
    """Return the model, with adapters if `train` has lora:RANK, and the parameters to train.

    With adapters, "!PATTERN" leaves out layers whose weight it matches. Other words select
    parameters to train in addition. Raises BadInput as `trained_parameters` and `with_adapters` do.
    """
    words = [word.strip() for word in train.split(",")] if isinstance(train, str) else [""]
    ranks = [word for word in words if word.startswith(WORD)]
    if not ranks:
        return model, trained_parameters(model, train, batchnorm)
    if len(ranks) > 1:
        raise BadInput(f"`train` has {' and '.join(ranks)}: write one rank for all adapters")
    others = [word for word in words if word not in ranks]
    without = [word for word in others if word.startswith("!")]
    patterns = ",".join(word[1:] for word in without)
    left_out = trained_parameters(model, patterns, batchnorm) if without else frozenset()
    is_more = len(others) > len(without)
    more = trained_parameters(model, ",".join(others), batchnorm) if is_more else frozenset()
    model, names = with_adapters(model, rank_of(ranks[0]), left_out | more)
    return model, names | more


def trained_parameters(model: Model, train: str, batchnorm: str = "train") -> frozenset[str]:
    """Return the names of the parameters to train.

    `train`: "all", "last:N" (those of the last N layers with parameters) and glob patterns of
    names, joined by commas. "!PATTERN" leaves out what it matches. If all words are of this kind,
    the others are trained. Raises BadInput if a word selects none, or if nothing remains.
    """
    if batchnorm not in BATCHNORM:
        raise BadInput(f"`batchnorm` is {batchnorm!r}: choose one of {', '.join(BATCHNORM)}")
    owners: dict[str, list[str]] = {}
    names: dict[str, None] = {}
    for layer in model.layers:
        if batchnorm == "frozen" and OPERATORS[layer.kind].frozen:
            continue
        nodes = layer.parameters.values()
        own = [node.name for node in nodes if node.role == "parameter" and node.name not in names]
        if own:
            owners[layer.name] = own
            names |= dict.fromkeys(own)
    if not names:
        raise BadInput(f"model {model.name} has no parameters to train")
    words = [word.strip() for word in train.split(",")] if isinstance(train, str) else [""]
    if not all(word.removeprefix("!") for word in words):
        raise BadInput(f"`train` is {train!r}: write {HOW}, with commas between them")

    def matching(word: str) -> set[str]:
        """Return the names that a word selects. Raises BadInput if it selects none."""
        if word.startswith("last:"):
            count = word.removeprefix("last:")
            if not count.isdecimal() or not 1 <= int(count) <= len(owners):
                raise BadInput(
                    f"`train` is {word!r}, but {model.name} has {len(owners)} layers with "
                    f"parameters: write a value from last:1 to last:{len(owners)}"
                )
            return {name for own in list(owners.values())[-int(count) :] for name in own}
        found = {name for name in names if word == "all" or fnmatchcase(name, word)}
        if not found:
            raise BadInput(
                f"`train` is {word!r}, which matches no parameter of {model.name}. The parameters "
                f"are {listed(list(names))}"
            )
        return found

    left_out = [matching(word[1:]) for word in words if word.startswith("!")]
    chosen = [matching(word) for word in words if not word.startswith("!")] or [set(names)]
    found = frozenset().union(*chosen).difference(*left_out)
    if not found:
        raise BadInput(
            f"`train` is {train!r}, which leaves out all that it selects: leave out less"
        )
    return found
