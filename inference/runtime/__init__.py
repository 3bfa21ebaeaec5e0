"""Running engines: compilation, chains, devices, chunks, checkpoints, progress."""
