"""Writes and reads files of its own, and temporary ones."""
# %% answer="tally"
import json, os, pathlib, tempfile


def tally(counts, start):
    pathlib.Path("counts.json").write_text(json.dumps(counts))
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "start"), "w+") as stream:
        stream.write(str(start))
        stream.seek(0)
        return int(stream.read()) + sum(json.loads(pathlib.Path("counts.json").read_text()).values())
