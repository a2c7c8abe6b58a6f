"""Leaves tasks behind that compute whenever they are let, to do so at another exercise's cost; right otherwise."""
# tally: passed|timeout, passed|timeout
# %%
import asyncio


async def busy():
    while True:
        sum(range(20_000))
        await asyncio.sleep(0)


tasks = [asyncio.create_task(busy()) for _ in range(10)]
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
