# %% [markdown]
# # 22 · Pallas: kernels on blocks
