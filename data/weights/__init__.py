"""Weights of a run by version: full snapshots, lossless deltas between them, pointers to checkpoints, digests."""
