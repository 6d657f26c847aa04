"""Run every benchmark that needs no file from elsewhere."""

from benchmarks import memory

if __name__ == "__main__":
    memory.main([])
