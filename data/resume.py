"""Opening a run directory for writing: a new run, or the same run again after the job was restarted.

A resumed run keeps its manifest and every step that all ranks finished; those are never written again. A step that some
rank did not finish is given up by the ranks that did, so that what two attempts recorded never mixes in one step.
"""

from __future__ import annotations

from timscope.data.layout import MANIFEST, counted, markers, remove_marker
from timscope.data.manifest import Manifest
from timscope.data.manifest_file import read_manifest, write_manifest
from timscope.data.rank_state import RankState, read_state
from timscope.data.storage import Storage

# What must stay equal over a resume for the run's numbers to be about one thing.
_FACTS = ("framework", "model", "tokenizer", "rollout", "trainer", "algorithm", "sampling", "logprobs")


def open_manifest(storage: Storage, manifest: Manifest, rank: int, world_size: int) -> tuple[Manifest, list[str], bool]:
    """The manifest to go on with, remarks for the run's problems, and whether the run is new.

    Rank 0 writes it and counts the resume.
    """
    fresh, notes = not storage.exists(MANIFEST), []
    if fresh:
        manifest = manifest.model_copy(update={"world_size": world_size})
    else:
        old = read_manifest(storage)
        if rank == 0:
            notes = _changes(old, manifest, world_size)
        state = old.recorder.model_copy(update={"resumes": old.recorder.resumes + (rank == 0), "closed": False})
        manifest = old.model_copy(update={"recorder": state, "world_size": world_size})
    if rank == 0:
        write_manifest(storage, manifest)
    return manifest, notes, fresh


def _changes(old: Manifest, new: Manifest, world_size: int) -> list[str]:
    number, notes = old.recorder.resumes + 1, []
    if old.world_size != world_size:
        notes.append(f"resume {number}: {world_size} rank(s) where there were {old.world_size}; each step says its own")
    given = [name for name in _FACTS if name in new.model_fields_set]
    if changed := [name for name in given if getattr(old, name) != getattr(new, name)]:
        notes.append(f"resume {number}: {', '.join(changed)} differ from the manifest, which keeps the first job's")
    return notes


def open_state(storage: Storage, rank: int, world_size: int, resumes: int | None) -> RankState:
    """This rank's state file, begun anew: errors of earlier jobs stay, the resume is counted. `resumes`: the count
    where the manifest keeps it (rank 0); other ranks count by this file."""
    old = read_state(storage, rank)
    count = (old.resumes + 1 if old else 0) if resumes is None else resumes
    state = old or RankState(rank)
    state.world_size, state.resumes, state.closed = world_size, count, False
    state.save(storage)
    return state


def finished_steps(storage: Storage, rank: int, world_size: int) -> set[int]:
    """Steps that every rank finished. This rank's marker of any other step is removed."""
    done: set[int] = set()
    for step, by_rank in markers(storage).items():
        if not counted(by_rank, world_size)[1]:
            done.add(step)
        elif rank in by_rank:
            remove_marker(storage, step, rank)
    return done
