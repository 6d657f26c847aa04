"""The model in torch: the RWKV-7 block, the recurrence, chunks and their chain."""
