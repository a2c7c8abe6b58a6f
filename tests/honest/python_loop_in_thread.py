"""Runs a loop in a thread inside the answer."""
# %% answer="bystander"
import asyncio, threading
def again(text):
    out = []
    async def go():
        await asyncio.sleep(0.001)
        return text * 2
    t = threading.Thread(target=lambda: out.append(asyncio.run(go())))
    t.start(); t.join()
    return out[0]
