"""Nests loops in one another, as guides for notebooks tell one to."""
# %%
import asyncio

import nest_asyncio2

nest_asyncio2.apply()
# %% answer="tally"
async def added(counts, start):
    await asyncio.sleep(0)
    return start + sum(counts.values())


def tally(counts, start):
    return asyncio.run(added(counts, start))


assert tally({"a": 1}, 2) == 3
