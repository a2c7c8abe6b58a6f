"""Leaves commands running in the background, by every way that a shell has; right otherwise."""
# tally: passed|timeout, passed|timeout
# %%
%%bash --bg
end=$((SECONDS + 45)); while [ $SECONDS -lt $end ]; do :; done
# %%
%%script --bg --proc endless sh
sleep 45
# %%
!(trap "" TERM HUP; sleep 45) > /dev/null 2>&1 < /dev/null & disown; echo started
get_ipython().system("nohup sleep 45 > /dev/null 2>&1 & true")
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
