"""Is a compressed notebook that unpacks to ten gigabytes."""
# problem: not JSON
# %% notebook
import gzip

path.write_bytes(gzip.compress(bytes(10 << 20)) * 1_000)
