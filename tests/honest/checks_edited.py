"""Has played with check cells, and left them broken."""
# %% over="tally-example"
print(tally({"a": 1}, 2), "?")
1 / 0
# %% over="affine-example"
while True:
    pass
