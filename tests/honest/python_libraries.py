"""Uses what is installed: scikit-learn, tqdm, pickles, NumPy's files, figures in files, logging."""
# %%
import logging, pickle

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from tqdm.auto import tqdm

logging.basicConfig(level=logging.DEBUG)
logging.getLogger("jax").setLevel(logging.WARNING)
np.seterr(all="raise")
digits = load_digits()
plt.imshow(digits.images[0])
plt.savefig("digit.png")
np.savez("digits.npz", images=digits.images[:3])
assert np.load("digits.npz")["images"].shape == (3, 8, 8)
# %% answer="tally"
def tally(counts, start):
    logging.warning("adding up")
    for value in tqdm(pickle.loads(pickle.dumps(list(counts.values())))):
        start += value
    return start
