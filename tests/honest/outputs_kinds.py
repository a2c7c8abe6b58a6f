"""Has outputs of many MIME types, large ones, and attachments."""

# %%
from IPython.display import display, HTML, SVG, JSON, Markdown, Latex, Javascript, Image, Audio

display(
    HTML("<b>x</b>"),
    Markdown("*x*"),
    Latex("$x$"),
    JSON({"a": 1}),
    Javascript("1"),
    SVG("<svg xmlns='http://www.w3.org/2000/svg'/>"),
)
# %% notebook
import base64

for i, c in enumerate(notebook["cells"]):
    if c["cell_type"] == "code":
        c["execution_count"] = 7
        c["outputs"] = [
            {
                "output_type": "display_data",
                "metadata": {"isolated": True},
                "data": {
                    "text/html": ["<script>", "1</script>"],
                    "application/vnd.plotly.v1+json": {"data": [{"x": list(range(100))}]},
                    "image/png": base64.b64encode(b"x" * 20000).decode(),
                    "application/json": {"a": [1]},
                    "text/latex": "$a$",
                    "image/svg+xml": "<svg/>",
                    "application/vnd.jupyter.widget-view+json": {"model_id": "a"},
                },
            },
            {"output_type": "execute_result", "execution_count": 7, "metadata": {}, "data": {"text/plain": "1"}},
        ]
    elif c["cell_type"] == "markdown":
        c["attachments"] = {"a.png": {"image/png": "aGk="}}
