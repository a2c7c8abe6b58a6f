// Pipeline timeline: a row for each stage and a column for each time step, up to the time of the slider.

function show(el, data) {
  let [schedule, stages, count] = data.start;
  const chart = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Timeline" });
  const totals = make("table", {});
  const time = steps("time", draw);
  const row = (name, options, chosen, set) =>
    choices(name, options, chosen, (option) => {
      set(option);
      update();
    });
  const view = frame(
    el,
    data.title,
    make(
      "div",
      {},
      make(
        "div",
        { class: "controls" },
        row("schedule", data.schedules, schedule, (one) => (schedule = one)),
        row("stages", data.stages, stages, (one) => (stages = one)),
        row("micro-batches", data.counts, count, (one) => (count = one)),
      ),
      time.node,
    ),
    chart,
    make("div", { class: "panel scroll", style: "margin-top: 10px", tabindex: 0, role: "region", "aria-label": "Counts" }, totals),
  );
  const table = () => data.tables[`${schedule}|${stages}|${count}`];
  const name = (kind, m) => (kind === "F" ? String(m) : `${m}′`);
  update();

  function update() {
    const { passes, end } = table();
    const cells = passes.flatMap((own, stage) => [
      make("div", { style: `grid-row: ${stage + 1}; grid-column: 1; padding: 5px 8px 0 0; white-space: nowrap` }, `stage ${stage}`),
      make("div", { class: "cell idle", style: `grid-row: ${stage + 1}; grid-column: 2 / ${end + 2}` }),
      ...own.map(([kind, m, start]) => {
        const place = `grid-row: ${stage + 1}; grid-column: ${start + 2} / span ${data.durations[kind]}`;
        return make("div", { class: "cell filled pass", "data-start": start, style: `${place}; background: ${data.fills[kind]}` }, name(kind, m));
      }),
    ]);
    const columns = `auto repeat(${end}, 22px)`;
    chart.replaceChildren(make("div", { class: "grid", style: `grid-template-columns: ${columns}; padding: 3px` }, cells));
    time.limit(end, end);
  }

  function draw(now) {
    if (!view) return;
    const { passes, end, fraction, stored } = table();
    chart.querySelectorAll(".pass").forEach((cell) => cell.classList.toggle("later", Number(cell.dataset.start) >= now));
    if (now < end) chart.scrollLeft = 22 * now - chart.clientWidth / 2; // a phone shows a part of the time
    const rows = passes.map((own, stage) => {
      const done = own.reduce((sum, [kind, , start]) => sum + Math.max(0, Math.min(data.durations[kind], now - start)), 0);
      const holds = own.filter(([kind, , start]) => kind === "F" && start < now).length -
        own.filter(([kind, , start]) => kind === "B" && start + data.durations.B <= now).length;
      const current = own.find(([kind, , start]) => start < now && now <= start + data.durations[kind]);
      const doing = !now ? "not started" : current ? `${current[0] === "F" ? "forward" : "backward"} pass of ${current[1]}` : "idle";
      return [`stage ${stage}`, doing, done, now - done, holds, stored[stage]];
    });
    const head = ["", "at this time", "busy", "idle", "stored", "stored at most"];
    totals.replaceChildren(
      make("tr", {}, head.map((text) => make("th", { scope: "col" }, text))),
      ...rows.map(([first, ...rest]) => make("tr", {}, make("th", { scope: "row" }, first), rest.map((one) => make("td", {}, String(one))))),
    );
    const idle = rows.reduce((sum, one) => sum + one[3], 0);
    const sum = `Until now, the stages were idle in ${idle} of ${stages * now} steps`;
    view.say(
      now < end
        ? `Time ${now}: ${rows.map(([stage, doing]) => `${stage} ${doing}`).join(", ")}. ${sum}.`
        : `${schedule} with ${plural(stages, "stage")} and ${plural(count, "micro-batch", "micro-batches")} ends at time ${end}. ` +
            `The bubble is ${idle} of ${stages * end} steps, ${(100 * fraction).toFixed(1)}%.`,
    );
  }
}
