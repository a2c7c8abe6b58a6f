"""Awaits at the top level of a cell, as notebooks allow."""
# %%
import asyncio

await asyncio.sleep(0)
# %% answer="tally"
import asyncio


async def added(counts, start):
    await asyncio.sleep(0)
    return start + sum(counts.values())


nothing = await added({"a": 1}, -1)


def tally(counts, start):
    return nothing + start + sum(counts.values())


print(await added({"a": 1}, 2))
