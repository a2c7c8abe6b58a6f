# %% [markdown]
# # 28 · Autodiff inside out
# The core takes 5 minutes.
# %%
print(1)
