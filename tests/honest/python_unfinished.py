"""Leaves threads and files open, changes its folder, and registers something for the end."""
# %%
import atexit, os, threading, time

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
atexit.register(time.sleep, 60)
kept = open("kept.txt", "w")
os.makedirs("deeper", exist_ok=True)
os.chdir("deeper")
