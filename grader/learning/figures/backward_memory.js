// Memory of a backward pass: a curve of the stored bytes, and the arrays that are stored at one equation.

function show(el, data) {
  const names = Object.keys(data.programs);
  let name = names[0];
  const program = () => data.programs[name];
  const peak = Math.max(...names.map((one) => data.programs[one].peak), 1);
  const longest = Math.max(...names.map((one) => data.programs[one].live.length));
  const bytes = (count) => plural(count, "byte");
  const chart = make("div", { "aria-hidden": "true" });
  const arrays = make("table", {});
  const equation = steps("equation", draw);
  const rows = make("div", { class: "controls" });
  if (names.length > 1) rows.append(choices("program", names, name, (one) => { name = one; update(); }));
  const view = frame(
    el,
    data.title,
    make("div", {}, rows, equation.node),
    chart,
    make("div", { class: "panel", style: "margin-top: 8px" }, make("h4", {}, "Stored at this equation, in addition to the arguments"), scroller("Stored arrays", arrays)),
  );

  // A curve with steps, in a box of 100 by 100 that is stretched.
  function curve(live, attributes) {
    const x = (at) => ((100 * at) / longest).toFixed(2);
    const y = (one) => (100 - (98 * one) / peak).toFixed(2);
    const points = live.map((one, at) => `H${x(at)}V${y(one)}H${x(at + 1)}`).join("");
    return `<path d="M0,100${points}V100" vector-effect="non-scaling-stroke" ${attributes}/>`;
  }

  function plot(at) {
    const one = program();
    const others = names.filter((other) => other !== name);
    const x = (place) => ((100 * place) / longest).toFixed(2);
    const lines = [
      ...others.map((other) => curve(data.programs[other].live, 'fill="none" stroke="var(--quiet)" stroke-dasharray="4 3"')),
      curve(one.live, 'fill="#f0c75e" fill-opacity=".55" stroke="#d55e00" stroke-width="2"'),
      `<path d="M${x(one.forward)},0V100" stroke="var(--ink)" stroke-dasharray="2 3" vector-effect="non-scaling-stroke"/>`,
      `<path d="M${x(at + 0.5)},0V100" stroke="#0072b2" stroke-width="3" vector-effect="non-scaling-stroke"/>`,
    ];
    const wide = "display: block; width: 100%; height: 150px; border-bottom: 1px solid var(--edge); border-left: 1px solid var(--edge)";
    chart.innerHTML =
      `<h4>Bytes, at most ${peak.toLocaleString("en")}${others.length ? ". Dashed: the other programs" : ""}</h4>` +
      `<svg viewBox="0 0 100 100" preserveAspectRatio="none" style="${wide}">${lines.join("")}</svg>` +
      `<div style="display: flex; font-size: 12px"><span style="min-width: max-content; padding-right: 8px; width: ${x(one.forward)}%">${one.forward ? "forward" : ""}</span><span>backward</span></div>`;
  }

  function update() {
    equation.limit(program().equations.length - 1, Math.max(program().forward - 1, 0));
  }

  function draw(at) {
    if (!view) return;
    const one = program();
    const stored = one.values
      .filter(([, , start, end]) => start <= at && at <= end)
      .sort((a, b) => b[1] - a[1]);
    const head = ["array", "bytes", "", "computed by", "last used by"];
    const row = ([label, size, start, end, residual]) => [label, size.toLocaleString("en"), residual ? "residual" : "", `equation ${start}`, `equation ${end}`];
    arrays.replaceChildren(
      make("tr", {}, head.map((text) => make("th", { scope: "col" }, text))),
      ...stored.slice(0, 10).map((value) => make("tr", {}, row(value).map((text) => make("td", {}, text)))),
    );
    if (stored.length > 10) arrays.append(make("tr", {}, make("td", { colspan: 5 }, `and ${stored.length - 10} smaller ones`)));
    plot(at);
    const pass = at < one.forward ? "forward" : "backward";
    const residuals = stored.filter((value) => value[4]).reduce((sum, value) => sum + value[1], 0);
    view.say(
      `Equation ${at}, ${one.equations[at]}, ${pass} pass: ${bytes(one.live[at])} are stored, ${bytes(residuals)} of them residuals. ` +
        `At most: ${bytes(one.peak)}.` +
        (one.loops ? " A loop counts as one equation." : ""),
    );
  }

  update();
}
