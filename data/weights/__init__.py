"""Weights of a run by version: full snapshots, lossless deltas between them, pointers to checkpoints, digests."""

from timscope.data.weights.chain import spans
from timscope.data.weights.entry import Entry, Key
from timscope.data.weights.restored import Weights
from timscope.data.weights.store import WeightStore
from timscope.data.weights.tensors import RawTensor, items

__all__ = ["Entry", "Key", "RawTensor", "WeightStore", "Weights", "items", "spans"]
