"""Awaits at the top of cells: tasks of one cell end in another, and all cells share one loop that runs."""
# %%
import asyncio

loop = asyncio.get_running_loop()
queue, ready = asyncio.Queue(), asyncio.Event()


async def count_up(most):
    for number in range(most):
        await asyncio.sleep(0.001)
        await queue.put(number)
    ready.set()
    return most


task = asyncio.create_task(count_up(3))
soon = loop.create_future()
loop.call_soon(soon.set_result, 5)
# %% before="affine"
await ready.wait()
assert queue.qsize() == 3 and asyncio.get_event_loop() is asyncio.get_running_loop() is loop
slope = await task
# %% answer="affine"
assert soon.done()


async def lines():
    for number in (1, 2):
        await asyncio.sleep(0)
        yield number


offset = [number async for number in lines()][0]


def affine(x):
    assert asyncio.get_running_loop() is loop
    return slope * x + offset
# %% answer="tally"
async def added(counts, start):
    await asyncio.sleep(0)
    return start + sum(counts.values())


def tally(counts, start):
    """The loop runs already, so a coroutine is run in a thread, where there is none."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, added(counts, start)).result()


assert await asyncio.gather(added({"a": 1}, 2), added({}, 0)) == [3, 0]
process = await asyncio.create_subprocess_exec("echo", "two", stdout=asyncio.subprocess.PIPE)
assert (await process.communicate())[0] == b"two\n"
