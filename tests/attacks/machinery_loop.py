"""Takes the loop over in which it is asked: another policy, a task that cancels, a step that never returns it."""
# tally: failed|crashed, failed|crashed
# bystander: crashed, crashed
# %%
import asyncio

loop = asyncio.get_running_loop()


async def meddle():
    while True:
        await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.set_result = task.cancel
                task.cancel()


meddling = asyncio.create_task(meddle())
asyncio.set_event_loop_policy(None)
asyncio.set_event_loop(asyncio.new_event_loop())
# %% answer="tally"
def tally(counts, start):
    loop.call_soon(loop.stop)
    loop.run_until_complete = loop.create_task = lambda *args, **options: b""
    return 0
