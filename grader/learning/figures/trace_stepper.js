// Trace stepper: the lines that Python has run, the variables after them, and the equations recorded so far.

function show(el, data) {
  const code = make("div", { class: "code" }, data.source.map((text, i) => line(i + 1, text)));
  const texts = [data.inputs, ...data.equations.map((text) => "    " + text), data.outputs];
  const program = make("div", { class: "code" }, texts.map((text) => make("div", {}, text)));
  const variables = make("table", {});
  const printed = make("div", { class: "code", style: "white-space: pre-wrap" });
  const control = steps("step", draw);
  const view = frame(
    el,
    data.title,
    control.node,
    make(
      "div",
      { class: "columns" },
      make("div", {}, make("h4", {}, "Python runs"), scroller("Python", code)),
      make("div", {}, make("h4", {}, "JAX has recorded"), scroller("jaxpr", program)),
    ),
    make(
      "div",
      { class: "columns", style: "margin-top: 10px" },
      make("div", { class: "panel" }, make("h4", {}, "Variables"), scroller("Variables", variables)),
      make("div", { class: "panel" }, make("h4", {}, "Printed while tracing"), printed),
    ),
  );

  function line(number, text) {
    return make("div", {}, make("span", { class: "number" }, String(number)), text);
  }

  function draw(at) {
    const step = data.steps[at];
    const last = at === data.steps.length - 1;
    const recorded = data.steps.slice(0, at + 1).reduce((sum, one) => sum + one.new.length, 0);
    [...code.children].forEach((node, i) => node.classList.toggle("now", i === step.line));
    [...program.children].forEach((node, i) => {
      node.classList.toggle("now", step.new.includes(i - 1));
      node.classList.toggle("later", i > recorded && !(last && i === texts.length - 1));
      node.setAttribute("aria-hidden", i > recorded && i < texts.length - 1);
      if (i && i < texts.length - 1) node.textContent = i <= recorded ? texts[i] : "    …";
    });
    variables.replaceChildren(
      ...step.variables.map(([name, text, kind]) =>
        make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "code" }, text), make("td", {}, kind)),
      ),
    );
    printed.textContent = step.printed || "nothing";
    view?.say(sentence(at, step, last, recorded));
  }

  function sentence(at, step, last, recorded) {
    if (step.line === null) return `JAX calls ${data.name} with tracers. Nothing is recorded yet.`;
    const new_ = step.new.map((i) => data.equations[i]).join("; ");
    const before = at ? data.steps[at - 1].printed : "";
    const parts = [`Line ${step.line + 1}: ${data.source[step.line].trim()}`];
    parts.push(new_ ? `adds ${plural(step.new.length, "equation")}: ${new_}.` : "adds no equation.");
    if (step.printed !== before) parts.push("Python prints.");
    if (last) parts.push(`The program is complete, with ${plural(recorded, "equation")}. Later calls run only the program.`);
    return parts.join(" ");
  }

  control.limit(data.steps.length - 1, 0);
  view.say(sentence(0, data.steps[0], false, 0));
}
