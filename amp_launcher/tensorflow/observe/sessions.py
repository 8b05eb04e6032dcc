"""The graphs that TensorFlow 1's sessions run, and the optimizer steps in them.

`Session.run` returns the partitions of the graph that its executors run, after every rewrite, where its options ask for
them. They are asked for at the first run of each set of feeds and fetches.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy
import tensorflow as tf
from tensorflow.python.client.session import BaseSession

from amp_launcher.around.replaced import replaced
from amp_launcher.precision.observation import Guard

APPLIES = re.compile(r"^(?:Resource)?(?:Sparse)?Apply(?P<name>[A-Z]\w*?)(?:V\d)?$")
"""An operation by which an optimizer of TensorFlow steps a variable."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainOperation:
    """The part of a graph that steps variables. A meter counts its steps, as those of an optimizer."""

    name: str
    """Of the optimizer's algorithm, such as Adam."""
    conditional: bool
    """Whether a run may skip the step, as a loss scale does."""


@dataclass(kw_only=True, slots=True)
class _Fetched:
    """What a session runs for one set of feeds and fetches."""

    name: str
    """Unique in this process."""
    trains: TrainOperation | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """A run of a session."""

    key: Any
    """The size of its graph, feeds and fetches."""
    asking: Any
    """The options that ask for its graphs, at its first run; else None."""


class Sessions:
    """Reads what sessions run."""

    def __init__(self, read: Callable[[str, Any], None], executed: Callable[[str], None], guard: Guard) -> None:
        """`read` gets a name and a graph as RunMetadata's `function_graphs` has it, before `executed` gets the name of
        each run of it."""
        self.stepped: Callable[[TrainOperation], None] = lambda operation: None
        """Called after each run that steps variables."""
        self.steps = 0
        self._read = read
        self._executed = executed
        self._guard = guard
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, _Fetched]] = weakref.WeakKeyDictionary()
        """By session, and by the size of its graph, feeds and fetches."""
        self._operations: dict[Any, TrainOperation] = {}
        """By the variables that they step."""
        self._trained: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        self._count = 0

    def trainable(self) -> Iterator[Any]:
        """The trainable variables of the graphs that were trained."""
        for graph in self._trained:
            yield from graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)

    def observing(self) -> AbstractContextManager[None]:
        """Sessions run in this context."""
        original, begin, end = BaseSession.run, self._guard.hook(self._begin), self._guard.hook(self._end)

        @functools.wraps(original)
        def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
            begun = begin(self, fetches, feed_dict or {}, options)
            if begun is None or begun.asking is None:
                result = original(self, fetches, feed_dict, options, run_metadata)
                end(self, begun, None, {})
                return result
            told = tf.compat.v1.RunMetadata()
            result = original(self, fetches, feed_dict, begun.asking, told)
            end(self, begun, told, feed_dict or {})
            if run_metadata is not None:
                if options is None or not options.output_partition_graphs:
                    told.ClearField("partition_graphs")
                run_metadata.CopyFrom(told)
            return result

        return replaced(BaseSession, "run", run)

    def _begin(self, session: Any, fetches: Any, feeds: Mapping[Any, Any], options: Any) -> _Begun:
        key = session.graph.version, _names(tf.nest.flatten(fetches)), frozenset(_names(feeds))
        asking = None
        if key not in self._known.setdefault(session, {}):
            asking = tf.compat.v1.RunOptions()
            asking.MergeFrom(options or asking)
            asking.output_partition_graphs = True
        return _Begun(key=key, asking=asking)

    def _end(self, session: Any, begun: _Begun, told: Any, feeds: Mapping[Any, Any]) -> None:
        known = self._known[session]
        if told is not None:
            known[begun.key] = self._first(told, feeds)
        self._ran(session, known[begun.key])

    def _first(self, told: Any, feeds: Mapping[Any, Any]) -> _Fetched:
        """Read what ran for the first time."""
        self._count += 1
        fetched = _Fetched(name=f"run {self._count} of a session", trains=self._train_operation(told.partition_graphs))
        whole = tf.compat.v1.GraphDef()
        for partition in told.partition_graphs:
            whole.MergeFrom(partition)
        _name_feeds(whole, dict(zip(_names(feeds), map(numpy.shape, feeds.values()), strict=True)))
        self._read(fetched.name, whole)
        return fetched

    def _train_operation(self, partitions: Any) -> TrainOperation | None:
        nodes = [(node, False) for graph in partitions for node in graph.node]
        nodes += [(node, True) for graph in partitions for inner in graph.library.function for node in inner.node_def]
        applied = [(found["name"], node, inner) for node, inner in nodes if (found := APPLIES.match(node.op))]
        if not applied:
            return None
        key = frozenset(node.input[0] for _, node, _ in applied)
        if key not in self._operations:
            conditional = any(inner or "cond" in node.name for _, node, inner in applied)
            self._operations[key] = TrainOperation(name=applied[0][0], conditional=conditional)
        return self._operations[key]

    def _ran(self, session: Any, fetched: _Fetched) -> None:
        self._executed(fetched.name)
        if fetched.trains is not None:
            self.steps += 1
            self._trained.add(session.graph)
            self.stepped(fetched.trains)


def _name_feeds(graph: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the arguments of a session's graph names that graphs can be imported with, and the shapes of what was fed.

    TensorFlow calls the argument for the tensor `NAME:OUTPUT` `_arg_NAME_OUTPUT_INDEX`.
    """
    renamed = {node.name: f"fed{node.name}" for node in graph.node if node.op == "_Arg"}
    for node in graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = renamed.get(name, name)
        if node.op != "_Arg":
            continue
        fed = node.name.removeprefix("_arg_").rpartition("_")[0]
        for name, shape in shapes.items():
            if fed in (name, "_".join((name if ":" in name else f"{name}:0").rsplit(":", 1))):
                node.attr["_output_shapes"].list.shape.append(tf.TensorShape(shape).as_proto())
        node.name = renamed[node.name]


def _names(items: Mapping[Any, Any] | list[Any]) -> tuple[str, ...]:
    """The names of tensors and operations, or of what stands for them."""
    return tuple(item if isinstance(item, str) else getattr(item, "name", None) or repr(item) for item in items)
