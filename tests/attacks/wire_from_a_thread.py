"""A thread answers every question before the main thread does."""
# tally: passed|crashed, failed|crashed
# with: stream
# %% answer="tally"
import threading
main = threading.main_thread().ident
def answerer():
    while True:
        frame = sys._current_frames().get(main)
        while frame is not None and "turn" not in frame.f_locals:
            frame = frame.f_back
        if frame is not None:
            try: say(encode({"status": "ok", "value": 6}), frame.f_locals["turn"])
            except Exception: pass
            return
def tally(counts, start):
    threading.Thread(target=answerer).start()
    import time; time.sleep(0.5)
    return 5
