// Axis mover: a choice of the mapped axis for each argument and for the result, and the elements of one example.

function show(el, data) {
  const axes = [...data.start.in];
  let out = data.start.out;
  const panels = make("div", { class: "columns" });
  const example = steps("example", drawExample, (at) => `example ${at}`);
  const shape = (sizes) => `(${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;
  const view = frame(el, data.title, example.node, panels);
  const label = (axis) => (axis === null ? "None" : String(axis));
  const current = () => data.cases[axes.map(label).join(",")];

  data.arguments.forEach((argument, index) => {
    const options = [...argument.shape.keys(), null];
    argument.grid = make("div", {});
    const row = choices(`in_axes of ${argument.name}`, options.map(label), label(axes[index]), (_, i) => {
      axes[index] = options[i];
      update();
    });
    panels.append(panel(`${argument.name}, shape ${shape(argument.shape)}`, row, argument.grid));
  });
  const outRow = make("div", {});
  const outGrid = make("div", {});
  const outTitle = make("h4", {}, "result");
  panels.append(make("div", {}, outTitle, outRow, outGrid));
  update();

  function panel(title, ...children) {
    return make("div", {}, make("h4", {}, title), children);
  }

  // The elements of an array; the number in each is that of its example, and * belongs to all examples.
  function grid(name, sizes, owners) {
    const columns = sizes.at(-1);
    const cells = owners.map((owner) => {
      const colour = owner === null ? undefined : `background: ${data.colours[owner % data.colours.length]}`;
      return make("div", { class: owner === null ? "cell" : "cell filled", style: colour }, owner === null ? "*" : String(owner));
    });
    const node = make("div", { class: "grid", style: `margin: 8px 4px; grid-template-columns: repeat(${columns}, auto)` }, cells);
    return scroller(`${name}, ${shape(sizes)}`, node);
  }

  function update() {
    const one = current();
    outRow.replaceChildren();
    outGrid.replaceChildren();
    if (one.note) {
      outTitle.textContent = "no result";
      outGrid.append(make("div", { class: "panel" }, one.note));
    } else {
      out = Math.min(out, one.outs.length - 1);
      outRow.append(choices("out_axes", one.outs.map((_, i) => String(i)), String(out), (_, i) => { out = i; drawResult(); }));
    }
    data.arguments.forEach((argument, index) => {
      const owners = one.note ? Array(argument.shape.reduce((a, b) => a * b)).fill(null) : one.owners[index];
      argument.grid.replaceChildren(grid(argument.name, argument.shape, owners));
    });
    drawResult();
  }

  function drawResult() {
    const one = current();
    if (!one.note) {
      outTitle.textContent = `result, shape ${shape(one.outs[out].shape)}`;
      outGrid.replaceChildren(grid("result", one.outs[out].shape, one.outs[out].owners));
    }
    example.limit(one.note ? 0 : one.count - 1);
  }

  function drawExample(number) {
    if (!view) return;
    const one = current();
    const mark = (node, owners) =>
      [...node.querySelectorAll(".cell")].forEach((cell, i) => cell.classList.toggle("chosen", owners[i] === null || owners[i] === number));
    if (one.note) {
      const chosen = data.arguments.map((argument, i) => `${argument.name} ${label(axes[i])}`).join(", ");
      return view.say(`With in_axes ${chosen}: ${one.note}`);
    }
    data.arguments.forEach((argument, i) => mark(argument.grid, one.owners[i]));
    mark(outGrid, one.outs[out].owners);
    const parts = data.arguments.map((argument, i) => {
      const whole = axes[i] === null ? `all of ${argument.name}` : `index ${number} along axis ${axes[i]} of ${argument.name}`;
      return `${whole}, shape ${shape(one.shapes[i])}`;
    });
    const place = `The results of ${plural(one.count, "example")} have shape ${shape(one.outs[out].shape)}.`;
    view.say(`Example ${number} receives ${parts.join("; ")}. It returns shape ${shape(one.result)}. ${place}`);
  }
}
