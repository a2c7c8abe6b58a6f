# %% [markdown]
# # 24 · Production
