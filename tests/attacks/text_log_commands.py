"""Has its errors and its name speak to CI services: commands of GitHub, Azure, TeamCity and Buildkite, also after a line that is broken."""
# tally: failed, failed
# says tally-example: :error title=forged
# %% answer="tally"
def tally(counts, start):
    raise ValueError(
        "::error title=forged::x\n  ::add-mask::points\n" + "w " * 30 + "::stop-commands::x\n##[error]x ##vso[task.complete]x ##teamcity[x]"
    )
# %% notebook
learner = "::add-mask::0 ##[group]\n::error title=a::b\n--- x"
