"""Uses threads, a pool of them, a child process and asyncio."""
# %% answer="tally"
import asyncio, subprocess, sys
from concurrent.futures import ThreadPoolExecutor


async def later(value):
    await asyncio.sleep(0)
    return value


def tally(counts, start):
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(int, counts.values()))
        return pool.submit(asyncio.run, later(start + sum(values))).result()
