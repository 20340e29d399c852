"""The replay room: recompute a recorded run's log-probabilities with an exact engine, and prove the engine exact."""
