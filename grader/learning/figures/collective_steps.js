// Collective steps: the shards of the array and of the result, and what each device holds after each step.

function show(el, data) {
  let operation = data.operations[0];
  let chosen = 0; // the place of the sharding
  const meshes = [...new Set(data.shardings.map((one) => one.mesh))];
  const specs = make("div", {});
  const arrays = make("div", { class: "columns" });
  const table = make("div", {});
  const step = steps("step", draw);
  const rows = make("div", { class: "controls" });
  if (data.operations.length > 1) rows.append(choices("operation", data.operations, operation, (one) => { operation = one; update(); }));
  if (meshes.length > 1) rows.append(choices("mesh", meshes, meshes[0], (one) => { chosen = data.shardings.findIndex((s) => s.mesh === one); offerSpecs(); update(); }));
  rows.append(specs);
  const view = frame(el, data.title, make("div", {}, rows, step.node), arrays, table);
  const program = () => data.programs[`${operation}|${chosen}`];
  const shape = (sizes) => `(${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;
  const colour = (device) => `background: ${data.colours[device % data.colours.length]}`;
  const bytes = (count) => `${count.toLocaleString("en", { maximumFractionDigits: 1 })} bytes`;

  function offerSpecs() {
    const mesh = data.shardings[chosen].mesh;
    const places = [...data.shardings.keys()].filter((i) => data.shardings[i].mesh === mesh);
    const names = places.map((i) => data.shardings[i].spec);
    specs.replaceChildren(choices(meshes.length > 1 ? "spec" : `spec (mesh ${mesh})`, names, names[0], (_, i) => { chosen = places[i]; update(); }));
  }

  // The blocks of an array, with the numbers of the devices that store them.
  function shards(title, one) {
    const cells = one.blocks.map((devices) => {
      const single = devices.length === 1;
      return make("div", { class: single ? "cell filled" : "cell", style: single ? colour(devices[0]) : "" }, devices.join(" "));
    });
    const grid = make("div", { class: "grid", style: `grid-template-columns: repeat(${one.columns}, minmax(34px, auto))` }, cells);
    const heading = make("h4", {}, `${title}: shape ${shape(one.shape)}, shards ${shape(one.shard)}`);
    return make("div", {}, heading, scroller(title, grid));
  }

  // Every step of every collective, in the order of the program.
  const moments = () =>
    program().collectives.flatMap((one, i) => one.states.map((_, at) => ({ one, at, i })).slice(i ? 1 : 0));

  function update() {
    const one = program();
    arrays.replaceChildren(shards(`array, ${data.shardings[chosen].spec}`, data.inputs[chosen]));
    if (!one.note) arrays.append(shards(`result, ${one.spec}`, one.output));
    step.limit(one.note ? 0 : Math.max(0, moments().length - 1), 0);
  }

  function draw(number) {
    if (!view) return;
    const all = program();
    if (all.note || !all.collectives.length) {
      table.replaceChildren();
      return view.say(all.note ?? `${operation} with ${data.shardings[chosen].spec}: no collective. Each device computes its shard alone.`);
    }
    const { one, at, i } = moments()[number];
    const before = one.states[Math.max(at - 1, 0)];
    const columns = one.groups.map((group) => group.map((device, place) => column(device, group, one.states[at][place], before[place], at)));
    const shown = one.kind === "all-to-all" ? "What each device has received, and its own block" : "What each device holds";
    table.replaceChildren(
      make("h4", { style: "margin-top: 12px" }, `${shown}: a column for each device, a frame for each group`),
      scroller("Contents of the devices", make("div", { style: "display: flex; gap: 10px; width: max-content; padding: 4px" }, columns.map(box))),
    );
    const along = one.along.length ? ` along ${one.along.join(" and ")}` : "";
    const count = all.collectives.length > 1 ? `Collective ${i + 1} of ${all.collectives.length}: ` : "";
    const total = one.states.length - 1;
    view.say(
      `${count}${one.kind}${along}${one.loop ? ", in a loop" : ""}. The result on a device has ${plural(one.elements, "element")}, ${bytes(one.bytes)}. ` +
        (at ? `Step ${at} of ${total}: each device sends ${bytes(one.step_bytes)}, ${bytes(one.step_bytes * at)} so far.` : "Before the first step.") +
        (at === total ? ` Complete: one device sent ${bytes(one.sent)}.` : ""),
    );
  }

  const box = (columns) =>
    make("div", { style: "display: flex; gap: 3px; border: 1px solid var(--edge); border-radius: 4px; padding: 4px" }, columns);

  // The blocks that a device holds. What arrived in this step has a frame.
  function column(device, group, holds, before, at) {
    const cells = holds.map((text) => {
      const from = text && !text.includes("+") ? group[Number(text)] : undefined;
      const words = text.split("+").filter(Boolean).map((place) => group[Number(place)]);
      const part = words.length > 3 ? `${words.length} of ${group.length}` : words.join("+");
      const label = words.length === group.length && group.length > 2 ? "sum" : part;
      return make("div", { class: from === undefined ? "cell" : "cell filled", style: from === undefined ? "" : colour(from) }, label);
    });
    cells.forEach((cell, i) => cell.classList.toggle("chosen", at > 0 && holds[i] !== before[i] && holds[i] !== ""));
    const head = make("div", { style: "text-align: center; font-size: 12px; font-weight: 700" }, `d${device}`);
    return make("div", { style: "display: grid; gap: 2px; align-content: start; font: 12px/1 ui-monospace, monospace" }, head, cells);
  }

  offerSpecs();
  update();
}
