"""How engines run: what is compiled and when, chains, devices, chunks, checkpoints, progress."""
