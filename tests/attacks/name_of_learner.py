"""Has a name that a terminal, a web page or a report may take for its own words."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
learner = "\x1b[2J\x1b[31mzz\u202e\u2066<script>alert(1)<\\script>[bold red]x[-]\r\nroot  17\\17 \u200b$(id)`id`;'\"&%s{0}"
