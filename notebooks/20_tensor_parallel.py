# %% [markdown]
# # 20 · Tensor parallelism
#
# *The core takes about 5 minutes.*
#
# words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here words in here 
