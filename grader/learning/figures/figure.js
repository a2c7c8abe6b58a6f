// Parts that all figures share: elements, a slider for steps, groups of choices, and a frame with a live text.

// An HTML element. Functions among the attributes are listeners, children are nodes or texts.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat());
  return node;
}

// The frame of a figure in `el`. Its keys stay with it: JupyterLab and the book use arrow keys themselves.
// The live text stands below the first child, which has the controls.
function frame(el, title, controls, ...children) {
  const live = make("p", { "aria-live": "polite", class: "live" });
  const node = make(
    "section",
    { class: "jaxercise-figure", "aria-label": title, "data-lm-suppress-shortcuts": "true" },
    make("div", { class: "title" }, title),
    controls,
    live,
    children,
  );
  // With Ctrl or Cmd, such as Ctrl+S, they are the page's: JupyterLab ignores all keys inside this attribute.
  const shared = (event) => event.ctrlKey || event.metaKey;
  const own = (event) => node.toggleAttribute("data-lm-suppress-shortcuts", !shared(event));
  for (const type of ["keydown", "keyup", "focusin"]) node.addEventListener(type, own);
  node.addEventListener("keydown", (event) => shared(event) || event.stopPropagation());
  el.replaceChildren(node);
  return { node, say: (text) => (live.textContent = text) };
}

// A slider with a button on each side. Arrow keys, Home and End move it. `onChange` gets the number of the step.
function steps(name, onChange, text = (at, last) => `${name} ${at} of ${last}`) {
  const range = make("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": name, input: () => go(value()) });
  const back = make("button", { type: "button", "aria-label": `Previous ${name}`, click: () => go(value() - 1) }, "◀");
  const forward = make("button", { type: "button", "aria-label": `Next ${name}`, click: () => go(value() + 1) }, "▶");
  const count = make("span", { class: "count" });
  const value = () => Number(range.value);
  function go(to) {
    range.value = Math.max(0, Math.min(to, Number(range.max)));
    back.disabled = value() === 0;
    forward.disabled = value() === Number(range.max);
    count.textContent = text(value(), Number(range.max));
    range.setAttribute("aria-valuetext", count.textContent);
    onChange(value());
  }
  return {
    node: make("div", { class: "controls" }, back, range, forward, count),
    value,
    go,
    limit(last, to = value()) {
      range.max = last;
      go(to);
    },
  };
}

// A row of choices, of which one is taken. Arrow keys move between them, and a pointer can drag the mark along the row.
let groups = 0;
function choices(name, options, chosen, onChange) {
  const group = `jaxercise-${Date.now()}-${groups++}`;
  const inputs = options.map((option, index) =>
    make("input", { type: "radio", name: group, value: index, checked: option === chosen, change: () => onChange(option, index) }),
  );
  const chips = options.map((option, index) => make("label", { class: "chip" }, inputs[index], String(option)));
  const drag = (event) => {
    if (event.buttons !== 1) return;
    const index = chips.indexOf(document.elementFromPoint(event.clientX, event.clientY)?.closest(".chip"));
    if (index < 0 || inputs[index].checked) return;
    inputs[index].checked = true;
    onChange(options[index], index);
  };
  return make("fieldset", { pointermove: drag, "aria-label": name }, make("legend", {}, name), chips);
}

// A box that scrolls sideways by itself; a key can scroll it too.
const scroller = (name, ...children) =>
  make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, children);

const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

