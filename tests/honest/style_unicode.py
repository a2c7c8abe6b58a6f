"""Names and comments in other scripts, emoji, and tabs for indentation."""
# %% answer="affine"
def affine(x):
	# 三倍して一を足す · три x плюс один · שלוש כפול x ועוד אחת · 🎉
	наклон, сдвиг = 3, 1  # ‏עברית‏
	return наклон * x + сдвиг
# %% answer="tally"
def tally(counts, start):
    """Σ über alle Zählungen – „richtig“."""
    Σ, π = sum(counts.values()), 3.14
    return start + Σ
