"""The plugin for verl, found through the entry point group `verl.plugins`: nothing to change in a job but its
environment.

    TIMSCOPE_RUN=/data/runs/a python -m verl.trainer.main_ppo ...

verl loads its plugins in every process that imports it, in the middle of its own import, and only loads them: nobody
calls what the entry point names. So this module does its one thing when it is imported, and that is to wait for the
trainers' modules; see verl_v1.py and verl_v0.py for what is recorded. Only the process that trains opens the run.
"""

from __future__ import annotations

import logging
import os


def plugin() -> None:
    """Watch out for verl's trainers. Does nothing without `TIMSCOPE_RUN`; calling it twice is the same as once."""
    global _watching
    # Checked before anything is imported: most of the processes that come here record nothing.
    if _watching or not os.environ.get("TIMSCOPE_RUN"):
        return
    _watching = True
    try:
        from timscope.loggers.adapters import verl_v0, verl_v1
        from timscope.loggers.adapters.post_import import when_imported
    except Exception as error:  # verl would swallow it without a word
        logging.getLogger("timscope").warning("timscope: this job is not recorded: %s", error)
        return
    when_imported("verl.trainer.ppo.v1.trainer_base", verl_v1.hook)
    when_imported("verl.trainer.ppo.ray_trainer", verl_v0.hook_trainer)
    when_imported("verl.utils.tracking", verl_v0.hook_tracking)


_watching = False
plugin()
