"""Splits a model into layers that are run one after the other over all nodes.

A layer aggregates the in-neighbours of a node at most once, and then works on each node's row by
itself. The model is a list of convolutions and activations, or one of PyTorch Geometric's models,
whose `forward` this module takes apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN

from gnnstore import _core
from gnnstore.errors import UsageError, as_plain

# Attributes of PyTorch Geometric's convolutions that cache the graph, and their values without it.
_CACHES = ("cached", "_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h")
# Attributes that every module has; whether it trains is put back.
_OF_MODULES = frozenset((*vars(torch.nn.Module()), *_CACHES))

_HOW = (
    "give a list of layers, such as [conv1, torch.relu, conv2], in which each takes "
    "((x, x_dst), edge_index), or x alone"
)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a model: one pass over all nodes."""

    name: str  # for messages, such as "layer 1 (SAGEConv)"
    conv: Callable[..., Tensor] | None  # None: the layer does not use neighbours
    after: tuple[Callable[..., Tensor], ...]  # each takes the rows [n, width] of the one before it

    def apply_after(self, rows: Tensor) -> Tensor:
        """Apply the functions that follow the convolution."""
        for function in self.after:
            rows = function(rows)
        return rows

    @property
    def parts(self) -> tuple[Callable[..., Tensor], ...]:
        """The convolution, if there is one, and the functions that follow it."""
        return (*(() if self.conv is None else (self.conv,)), *self.after)

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The modules among its parts."""
        return [part for part in self.parts if isinstance(part, torch.nn.Module)]


def read_layers(model: Any) -> tuple[Layer, ...]:
    """Split a model into layers."""
    layers: list[Layer] = []
    for number, stage in enumerate(_stages(model)):
        if isinstance(stage, type):
            raise UsageError(
                f"layers[{number}] is the class {stage.__name__}; give a layer made of it, with "
                f"its weights: {stage.__name__}(...)"
            )
        if not callable(stage):
            raise UsageError(f"layers[{number}] is a {type(stage).__name__}, not a layer; {_HOW}")
        if isinstance(stage, torch.nn.Module) and any(
            is_lazy(tensor) for tensor in (*stage.parameters(), *stage.buffers())
        ):
            raise UsageError(
                f"layers[{number}] ({_name_of(stage)}) has weights without a shape as yet (lazy "
                "initialisation); train it, or load its weights, before inference"
            )
        uses_edges = _looks_at_neighbors(stage)
        if uses_edges or not layers:
            name = f"layer {len(layers) + 1} ({_name_of(stage)})"
            layers.append(Layer(name, *((stage, ()) if uses_edges else (None, (stage,)))))
        else:
            last = layers[-1]
            layers[-1] = Layer(last.name, last.conv, (*last.after, stage))
    if not layers:
        raise UsageError(f"there is no layer to run; {_HOW}")
    return tuple(layers)


def _stages(model: Any) -> Iterator[Any]:
    if isinstance(model, BasicGNN):
        if not _is_as_defined(model, BasicGNN):
            raise UsageError(
                f"{_name_of(model)} has a forward() of its own, or hooks, and cannot be taken "
                f"apart as PyTorch Geometric's models can; {_HOW}"
            )
        yield from _stages_of_basic_gnn(model)
    elif isinstance(model, torch.nn.ModuleList) or (
        isinstance(model, torch.nn.Sequential) and _is_as_defined(model, torch.nn.Sequential)
    ):
        for stage in model:
            yield from _stages(stage)
    elif isinstance(model, Sequence) and not isinstance(model, str):
        for stage in model:
            # A list in a list is a mistake; a Sequential in one is not.
            yield from _stages(stage) if isinstance(stage, torch.nn.Sequential) else (stage,)
    else:
        yield model


def _is_as_defined(module: torch.nn.Module, base: type[torch.nn.Module]) -> bool:
    """Whether a call of the module does exactly what its base does."""
    is_own = type(module).forward is not base.forward or "forward" in vars(module)
    return not (is_own or module._forward_hooks or module._forward_pre_hooks)


def _stages_of_basic_gnn(model: Any) -> Iterator[Any]:
    """Yield the steps of `BasicGNN.forward` in evaluation mode."""
    if model.jk_mode not in (None, "last"):
        raise UsageError(
            f"{_name_of(model)} joins the outputs of all its layers (jk={model.jk_mode!r}), so it "
            "cannot be run layer by layer; run it with jk=None or jk='last', or evaluate with a "
            "gnnstore.NeighborLoader that takes all neighbours ([-1, -1])"
        )
    for number, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        yield conv
        if number < model.num_layers - 1 or model.jk_mode is not None:
            act = [] if model.act is None else [model.act]
            yield from (*act, norm) if model.act_first else (norm, *act)
    if hasattr(model, "lin"):
        yield model.lin


def _looks_at_neighbors(stage: Any) -> bool:
    """Return whether a callable takes edges: it is a convolution, or needs two arguments."""
    if isinstance(stage, MessagePassing):
        return True
    if isinstance(stage, torch.nn.Module):
        if type(stage).__module__.startswith("torch.nn.modules."):
            return False
        stage = stage.forward
    try:
        parameters = inspect.signature(stage).parameters.values()
    except (TypeError, ValueError):  # compiled, as torch.relu is
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in kinds and one.default is one.empty]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return len(needed) >= 2 or (takes_any and not needed)


def _name_of(stage: Any) -> str:
    if isinstance(stage, torch.nn.Module):
        return type(stage).__name__
    return str(getattr(stage, "__name__", type(stage).__name__))


@contextmanager
def changed(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes of modules within the context."""
    before = [(module, name, getattr(module, name), value) for module, name, value in changes]
    try:
        for module, name, _, value in before:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value, _ in before:
            setattr(module, name, value)


def evaluating(layers: Sequence[Layer]) -> AbstractContextManager[None]:
    """Put modules into evaluation mode, without caches, within the context."""
    return changed(
        (module, name, None if name.startswith("_") else False)
        for layer in layers
        for part in layer.modules
        for module in part.modules()
        for name in ("training", *(_CACHES if isinstance(module, MessagePassing) else ()))
        if name in vars(module)
    )


def describe(layer: Layer) -> list[dict[str, Any]]:
    """Return the values that a layer's result depends on, as JSON: parts, settings and weights."""
    return [_describe(part) for part in layer.parts]


def _describe(part: Callable[..., Tensor]) -> dict[str, Any]:
    if not isinstance(part, torch.nn.Module):
        return {"function": _as_json(part), "settings": _settings(part)}
    settings = {
        f"{path}.{key}" if path else key: value
        for path, module in part.named_modules()
        for key, value in {"type": _as_json(type(module)), **_settings(module)}.items()
    }
    # Also buffers that are not stored with the weights.
    weights = {**part.state_dict(keep_vars=True), **dict(part.named_buffers())}
    plain = {name: _as_json(weights[name]) for name in sorted(weights)}
    return {"module": repr(part), "settings": settings, "weights": plain}


def _settings(part: Any) -> dict[str, Any]:
    """Return the attributes of a module or a callable object, except its base's."""
    if isinstance(part, partial):
        return {name: _as_json(getattr(part, name)) for name in ("func", "args", "keywords")}
    is_of_a_library = type(part).__module__.startswith(("torch.", "torch_geometric."))
    return {
        name: _as_json(value)
        for name, value in getattr(part, "__dict__", {}).items()
        if name not in _OF_MODULES and not (is_of_a_library and name.startswith("_"))
    }


def _as_json(value: Any) -> Any:
    """Return a value as JSON: itself if it is plain, else its name."""
    value = as_plain(value) if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, (Tensor, np.ndarray)):
        with suppress(RuntimeError, TypeError):  # sparse tensors, arrays of objects
            array = torch.as_tensor(value).detach().cpu().contiguous()
            crc = _core.crc32c(array.view(-1).view(torch.uint8).numpy())
            return f"{array.dtype} {list(array.shape)} {crc:08x}"
    if isinstance(value, Mapping):
        return {str(name): _as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        plain = [_as_json(one) for one in value]
        return plain if isinstance(value, (list, tuple)) else sorted(plain, key=repr)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"
