"""What a learner may write into a notebook so that a page runs a script, loads a file, or hides what it says."""

from __future__ import annotations

RUNS = "window.ran='x';document.title='ran'"
FAR = "http://far.invalid"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="

# By name: Markdown, or HTML in it. The first ones act by being opened; the last ones when clicked, or by their looks.
OPENED = {
    "script": f"<script>{RUNS}</script>",
    "script in a paragraph": f"text <script>{RUNS}</script> text",
    "script after a tag that is left open": f"<p <script>{RUNS}</script>",
    "script after a style sheet that is left open": f"<style><!--</style><script>{RUNS}</script>",
    "script from far": f"<script src={FAR}/a.js></script>",
    "script module": f"<script type=module>{RUNS}</script>",
    "script in upper case and torn": f"<SCRIPT\n>{RUNS}</SCRIPT\n>",
    "image that is not there": f'<img src=x onerror="{RUNS}">',
    "image, slashes for spaces": f'<img/src="x"/onerror="{RUNS}"/>',
    "image in a table": f'| a | b |\n|---|---|\n| <img src=x onerror="{RUNS}"> | c |',
    "image in a list": f'- one\n  - <img src=x onerror="{RUNS}">',
    "image in a quotation": f'> <img src=x onerror="{RUNS}">',
    "image in details": f'<details open ontoggle="{RUNS}"><summary>s</summary>d</details>',
    "svg that is loaded": f'<svg onload="{RUNS}"></svg>',
    "svg with a script": f"<svg><script>{RUNS}</script></svg>",
    "svg that moves": f'<svg><animate onbegin="{RUNS}" attributeName=x dur=1s></svg>',
    "mathml that turns into html": "<math><mtext><table><mglyph><style><!--</style>"
    f'<img title="--&gt;&lt;img src=1 onerror={RUNS}&gt;">',
    "noscript that turns into html": f'<noscript><p title="</noscript><img src=x onerror={RUNS}>">',
    "form that takes the focus": f'<input autofocus onfocus="{RUNS}">',
    "video that is not there": f'<video><source onerror="{RUNS}"></video>',
    "body": f'<body onload="{RUNS}">',
    "marquee": f'<marquee onstart="{RUNS}">m</marquee>',
    "frame": "<iframe srcdoc=\"<script>parent.ran='x'</script>\"></iframe>",
    "frame from far": f"<iframe src={FAR}/frame></iframe>",
    "object from far": f"<object data={FAR}/object></object><embed src={FAR}/embed>",
    "refresh": f'<meta http-equiv=refresh content="0;url={FAR}/refresh">',
    "base": f"<base href={FAR}/><img src=based.png>",
    "style sheet from far": f'<link rel=stylesheet href={FAR}/a.css><style>@import "{FAR}/b.css";</style>',
    "style that loads": f'<p style="background:url({FAR}/background)">p</p>',
    "picture from far": f"![a picture]({FAR}/picture.png)",
    "picture from far, as html": f'<img src="{FAR}/p.png" srcset="{FAR}/q.png 2x">',
    "picture from beside the page": "![a picture](beside.png) <img src='../other.png'>",
    "picture that is drawn by a script": "![p](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9InRvcC5yYW49J3gnIi8+)",
    "audio from far": f"<audio src={FAR}/a.mp3 autoplay></audio><video poster={FAR}/p.png></video>",
    "prefetch": f"<link rel=prefetch href={FAR}/x><link rel=preload as=image href={FAR}/y>",
    "form that is sent": f"<form action={FAR}/form id=f><input name=q></form>",
    "end of the page": f"</div></section></body></html><script>{RUNS}</script>",
    "end of code": f"```\n</code></pre><script>{RUNS}</script>\n```",
    "name of a language": f'```"><script>{RUNS}</script>\ncode\n```',
    "title of a link": f'[a](http://a.invalid "\'><script>{RUNS}</script>")',
    "name of a picture": f'!["><script>{RUNS}</script>](x "\' onerror=\'{RUNS}")',
    "formula": f"$$</span><script>{RUNS}</script>$$ and $<img src=x onerror={RUNS}>$",
    "comment": f"<!--><script>{RUNS}</script>-->",
    "declaration": f"<![CDATA[><script>{RUNS}</script>]]><?xml <script>{RUNS}</script>?>",
    "heading": f"# <img src=x onerror={RUNS}>",
    "widget": '<script type="application/vnd.jupyter.widget-view+json">{"model_id": "x"}</script>',
}
CLICKED = {
    "javascript link": f"[click](javascript:{RUNS.replace(' ', '')})",
    "javascript link, as html": f'<a href="javascript:{RUNS}">click</a>',
    "javascript link, torn": f'<a href="java&#10;script:{RUNS}">click</a>',
    "javascript link, spelt": f'<a href="&#106;&#97;vascript&colon;{RUNS}">click</a>',
    "javascript link in brackets": f"<javascript:{RUNS}>",
    "javascript reference": f"[click][r]\n\n[r]: javascript:{RUNS.replace(' ', '')}",
    "data link": f'<a href="data:text/html,<script>{RUNS}</script>">click</a>',
    "vbscript link": "[click](vbscript:msgbox(1))",
    "file link": "[click](file:///etc/passwd)",
    "link to what lies beside": "[my plot](mine.html) <a href=/lab>lab</a> <a href=//far.invalid/x>x</a>",
    "button": f'<button onclick="{RUNS}">click</button>',
}
COVERING = {
    "style sheet": "<style>body { display: none } h1 { position: fixed; inset: 0 }</style>",
    "style": '<div style="position:fixed;inset:0;background:#fff;z-index:9">full marks</div>',
    "classes and ids": '<h2 id="section-1" class="total">9 of 9</h2><p class="note bad" id=x name=y>note</p>',
    "large picture": f'<img width=99999 height=99999 src="data:image/png;base64,{DOT}">',
    "table": "<table width=99999 height=99999><tr><td height=9999 width=9999>t</td></tr></table>",
    "dialog": "<dialog open>full marks</dialog><div popover=manual id=p>p</div>",
    "marks over marks": "a" + "\u0301\u0323" * 2000,
    "other direction": "\u202e\u2066 stniop 9 fo 9",
    "one long word": "m" * 5000,
    "one long line of code": "```\n" + "m " * 2500 + "\n```",
}
EVERY = {**OPENED, **CLICKED, **COVERING}
