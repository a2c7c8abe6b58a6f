"""Draws which tool answers which question: symptoms, the tools to use for them, and what each tool gives."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, box, card, save, words

GROUPS = [
    (
        "wrong values",
        WRONG,
        [
            ("a result is NaN or inf", "jax.debug_nans, jax.debug_infs", "an error at the operation"),
            ("a value inside is not known", "jax.debug.print", "a line in each call"),
            ("the cause needs a closer look", "jax.debug.breakpoint", "a prompt in the program"),
            ("one example or index is bad", "checkify", "an error value with a message"),
        ],
    ),
    (
        "errors",
        SHARED,
        [
            ("only the jitted code fails", "jax.disable_jit", "plain Python, with values"),
            ("the traceback is too long", "jax_traceback_filtering", "a short traceback"),
            ("an old tracer is used", "jax.checking_leaks", "an error where it leaks"),
        ],
    ),
    (
        "slow calls",
        MAPPED,
        [
            ("it compiles again and again", "jax.explain_cache_misses", "what differs in the cache key"),
            ("the first call takes minutes", "jax.log_compiles", "the time of each stage"),
            ("data are copied in each step", "jax.transfer_guard", "an error at the copy"),
        ],
    ),
    (
        "silent mistakes",
        RESULT,
        [
            ("random numbers repeat", "jax.debug_key_reuse", "an error at the second use"),
            ("a device stores too much", "visualize_array_sharding", "a picture of the shards"),
        ],
    ),
]

axes = card(17, 12.3)
words(axes, 0.5, 0.6, "symptom", size=12, align="left", bold=True)
words(axes, 6.65, 0.6, "tool", size=12, align="left", bold=True)
words(axes, 12.6, 0.6, "what you get", size=12, align="left", bold=True)
y = 1.1
for title, fill, rows in GROUPS:
    axes.plot([0.4, 16.6], [y, y], color=EDGE, linewidth=1)
    words(axes, 0.5, y + 0.33, title, size=10, align="left", bold=True, colour=QUIET)
    y += 0.62
    for symptom, tool, gives in rows:
        box(axes, 0.5, y, 0.3, 0.5, "", fill=fill)
        words(axes, 1.0, y + 0.25, symptom, size=10.5, align="left")
        box(axes, 6.6, y, 5.0, 0.5, tool, fill=PLAIN, size=9.5)
        arrow(axes, (11.75, y + 0.25), (12.4, y + 0.25))
        words(axes, 12.6, y + 0.25, gives, size=10.5, align="left")
        y += 0.68
    y += 0.1
save(axes, __file__)
