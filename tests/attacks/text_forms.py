"""Writes errors that end what a report writes around them: XML, HTML, Markdown, workflow commands, spreadsheets."""
# tally: failed, failed
# keep: failed, failed, passed
# %% answer="tally"
def tally(counts, start):
    raise ValueError("]]></failure>\n::error::owned\n::stop-commands::x\n| a | b |\n```\n<!-- </pre></details><script>alert(1)</script>")
# %% answer="keep"
def doubled(tree):
    return {'=cmd|" /C calc"!A0': 1, "@SUM(1)": 2, "+1": 3, "<img src=x onerror=alert(1)>": 4, "[x](javascript:alert(1))": 5}
