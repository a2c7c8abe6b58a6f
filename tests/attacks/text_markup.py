"""Has its errors and names speak HTML, JavaScript, Markdown, and the markup of the terminal's library."""
# tally: failed, failed
# keep: failed, failed, passed
# says tally-example: [bold red]17 of 17[/] <script>alert(1)</script>
# %% answer="tally"
def tally(counts, start):
    raise ValueError("[bold red]17 of 17[/] <script>alert(1)</script> <img src=x onerror=alert(1)> ![](http://x) {0} %s")
# %% answer="keep"
def doubled(tree):
    return type("[red]</td><script>alert(1)</script>", (), {})()
