"use strict";
// Shows the workshop. Every text of a learner becomes a text node, never markup.
const token = location.hash.slice(1);
const SYMBOLS = { open: "○", trying: "◐", passing: "●", done: "✓" };
const WORDS = { open: "not begun", trying: "a check failed", passing: "public checks passed", done: "all points" };
const LETTERS = "ABCDEFGH";
const rows = new Map();
let summary = null, outline = null, groups = {}, queue = null, role = "", offset = 0, clock = 0, stopped = 0, retry = 500;
const at = (id) => document.getElementById(id);

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Text of the course, with `code` between backticks.
function courseText(name, text, attributes = {}) {
  const made = element(name, "", attributes);
  text.split("`").forEach((part, i) => made.append(i % 2 ? element("code", part) : part));
  return made;
}

const plain = (text) => text.replaceAll("`", "");
const people = (count) => `${count} ${count === 1 ? "learner" : "learners"}`;
const minutes = (seconds) => Math.floor(Math.max(0, seconds) / 60);
const exercise = (id) => outline.exercises.find((one) => one.id === id);
const label = (one) => `${one.lesson.slice(0, 2)} ${plain(one.title)}`;

function connect() {
  const address = new URL("api/live", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  address.hash = "";
  const socket = new WebSocket(address);
  socket.onopen = () => socket.send(token);
  socket.onmessage = (event) => {
    const sent = JSON.parse(event.data);
    retry = 500;
    offset = sent.now - Date.now() / 1000;
    clock = sent.clock - Date.now() / 1000;
    stopped = sent.clock;
    summary = sent.summary;
    queue = sent.queue || null;
    if (sent.groups) groups = sent.groups;
    if (sent.role) {
      role = sent.role;
      outline = sent.outline;
      rows.clear();
      begin(sent.address || new URL(".", location.href).href, sent.code);
    }
    for (const row of sent.rows || []) row.removed ? rows.delete(row.id) : rows.set(row.id, row);
    draw(Boolean(sent.groups || sent.role));
  };
  socket.onclose = (event) => {
    if (event.code === 4401 || event.code === 4429) {
      say("This address has no valid token. Open the address that the command has printed.");
    } else {
      say("The connection is lost. Connecting again ...");
      setTimeout(connect, retry);
      retry = Math.min(2 * retry, 8000);
    }
  };
}

function say(text) {
  at("message").textContent = text;
  at("message").hidden = !text;
}

function begin(address, code) {
  say("");
  const instructor = role === "instructor";
  document.title = instructor ? "Workshop: instructor" : "Workshop: projector";
  document.querySelector("h1").textContent = document.title;
  document.body.classList.toggle("projector", !instructor);
  at("join").replaceChildren(element("span", "To join, run in a terminal: "), element("code", `grader join ${address} ${code}`));
  at("join").hidden = false;
  for (const id of ["actions", "learners-section", "attention-section"]) at(id).hidden = !instructor;
  const options = [element("option", "none", { value: "" })];
  for (const one of outline.exercises) options.push(element("option", label(one), { value: one.id }));
  at("open").replaceChildren(...options);
  at("points-note").textContent = outline.judges
    ? "Points are those of this machine's grading of the saved notebooks."
    : "Points are self-reported by the learners' machines.";
}

function draw(redrawsGroups) {
  at("counts").textContent = people(summary.learners) + (summary.paused ? ", break" : "");
  at("queue").hidden = !queue;
  if (queue) {
    const longest = queue.longest === undefined ? "" : `, longest time to a result ${queue.longest.toFixed(1)} s`;
    at("queue").textContent = `Grading: ${queue.waiting} waiting, ${queue.busy} running${longest}`;
  }
  if (document.activeElement !== at("open")) at("open").value = summary.open || "";
  at("hide").checked = summary.hides_predictions;
  at("break").checked = summary.paused;
  at("hint-shown").hidden = !summary.hint;
  if (at("hint-shown").textContent !== summary.hint) at("hint-shown").textContent = summary.hint;
  drawDisplay();
  drawExercises();
  drawPredictions();
  if (role === "instructor") {
    if (redrawsGroups) drawGroups();
    drawLearners();
  }
  tick();
}

function drawExercises() {
  const lines = summary.exercises.map((now) => {
    const one = exercise(now.id), open = one.id === summary.open;
    const line = element("li", "", open ? { class: "now", "aria-current": "true" } : {});
    line.append(element("h3", `${open ? "▶ " : ""}${label(one)}`));
    const counts = { ...now.counts };
    counts.open = summary.learners - Object.values(counts).reduce((a, b) => a + b, 0);
    const order = ["done", "passing", "trying", "open"].filter((status) => counts[status] > 0);
    const said = order.map((status) => `${WORDS[status]}: ${counts[status]}`).join(", ");
    const bar = element("div", "", { class: "stack", role: "img", "aria-label": `${label(one)}. ${said || "no learners"}` });
    for (const status of order) {
      const part = element("span", `${SYMBOLS[status]} ${counts[status]}`, { class: status, title: `${WORDS[status]}: ${counts[status]}` });
      part.style.flexGrow = counts[status];
      bar.append(part);
    }
    const pace = now.minutes === null ? `planned ${one.planned} min` : `median ${now.minutes} min, planned ${one.planned} min`;
    line.append(bar, element("span", pace, { class: "quiet" }));
    if (now.misconceptions.length) {
      const list = element("ul", "", { class: "misconceptions", "aria-label": `Misconceptions: ${plain(one.title)}` });
      for (const [text, count] of now.misconceptions) list.append(courseText("li", `${count} × ${text}`));
      line.append(list);
    }
    return line;
  });
  at("exercises").replaceChildren(...lines);
}

function tallyBar(text, count, all, right) {
  const bar = element("div", "", { class: right ? "bar right" : "bar", role: "img", "aria-label": `${plain(text)}: ${count} of ${all}${right ? ", correct" : ""}` });
  bar.append(courseText("span", `${text}${right ? " ✓" : ""}`, { class: "choice" }));
  const track = element("span", "", { class: "track" }), filled = element("span");
  filled.style.width = `${all ? (100 * count) / all : 0}%`;
  track.append(filled);
  bar.append(track, element("span", String(count), { class: "number" }));
  return bar;
}

function drawPredictions() {
  at("predictions-section").hidden = !summary.predictions.length;
  const cards = summary.predictions.map((now) => {
    const one = outline.predictions.find((found) => found.id === now.id);
    const card = element("article", "", { class: "card" });
    card.append(courseText("h3", one.question, { class: "question" }));
    one.choices.forEach((choice, i) => {
      const letter = LETTERS[i];
      if (now.counts) card.append(tallyBar(`${letter} ${choice}`, now.counts[letter] || 0, now.answered, now.right === letter));
      else card.append(courseText("p", `${letter} ${choice}`));
    });
    card.append(element("p", `${now.answered} of ${summary.learners} have answered.${now.counts ? "" : " The result is hidden until everyone has."}`, { class: "quiet" }));
    return card;
  });
  at("predictions").replaceChildren(...cards);
}

function drawGroups() {
  const found = Object.entries(groups);
  at("answers-section").hidden = !found.length;
  const cards = [];
  for (const [id, answers] of found) {
    for (const one of answers) {
      const card = element("article", "", { class: "card" });
      card.append(element("h3", `${label(exercise(id))}: ${people(one.count)}`), element("pre", one.code, { tabindex: "0" }));
      const button = element("button", "Show on the projector", { "aria-label": `Show this answer to ${plain(exercise(id).title)} on the projector` });
      button.onclick = () => act({ kind: "show", exercise: id, group: one.group });
      card.append(button);
      cards.push(card);
    }
  }
  at("answers").replaceChildren(...cards);
}

function drawDisplay() {
  const one = summary.display, key = JSON.stringify(one);
  at("display-section").hidden = !one;
  if (!one || at("display").dataset.key === key) return;
  at("display").dataset.key = key;
  const sides = element("div", "", { class: "sides" });
  for (const [title, code] of [[`Shared by ${people(one.count)}`, one.code], ["Correct answer", one.reference]]) {
    const side = element("div");
    side.append(element("h3", title), element("pre", code, { tabindex: "0", "aria-label": title }));
    sides.append(side);
  }
  const shown = [element("p", label(exercise(one.exercise))), sides];
  if (role === "instructor") {
    const button = element("button", "Remove from the projector");
    button.onclick = () => act({ kind: "show", exercise: null });
    shown.push(button);
  }
  at("display").replaceChildren(...shown);
}

// By the workshop's clock, which stands still in a break.
const waiting = (row) => (summary.paused ? stopped : Date.now() / 1000 + clock) - row.progressed;
const isStuck = (row) => !row.done && !row.left && waiting(row) > summary.stuck_after;

function drawAttention(order) {
  const gap = summary.median_gap ? `Median time between two steps forward: ${(summary.median_gap / 60).toFixed(1)} min. ` : "";
  at("pace").textContent = `${gap}Marked as stuck after ${minutes(summary.stuck_after)} min without one.`;
  const lines = order.filter((row) => row.help || isStuck(row)).map((row) => {
    const line = element("li", "", { class: row.help ? "help" : "" });
    line.append(element("strong", row.name), element("span", `${minutes(waiting(row))} min without progress`));
    if (row.help) {
      line.append(element("span", "asks for help"));
      const button = element("button", "Mark as helped", { "aria-label": `${row.name} asks for help. Mark as helped` });
      button.dataset.action = `helped ${row.id}`;
      button.onclick = () => act({ kind: "helped", learner: row.id });
      line.append(button);
    }
    return line;
  });
  at("attention").replaceChildren(...(lines.length ? lines : [element("li", "Nobody asks for help or is stuck.")]));
}

function drawLearners() {
  const head = element("tr");
  head.append(element("th", "Learner", { scope: "col" }), element("th", "Last progress", { scope: "col" }));
  for (const one of outline.exercises) head.append(element("th", label(one), { scope: "col" }));
  head.append(element("th", "Remove", { scope: "col" }));
  const body = element("tbody");
  const order = [...rows.values()].filter((row) => !row.replaced).sort((a, b) => a.left - b.left || b.help - a.help || a.done - b.done || a.progressed - b.progressed);
  const focused = document.activeElement && document.activeElement.dataset.action;
  for (const row of order) {
    const line = element("tr");
    const stuck = isStuck(row);
    line.append(
      element("th", row.name, { scope: "row" }),
      element("td", row.left ? "left" : `${minutes(waiting(row))} min${stuck ? ", stuck?" : ""}`, { class: stuck ? "waiting stuck" : "waiting" }),
    );
    for (const one of outline.exercises) {
      const cell = row.cells[one.id] || { status: "open", earned: 0, failures: 0 };
      const about = `${row.name}, ${plain(one.title)}: ${WORDS[cell.status]}, ${cell.earned} of ${one.points} points, ${cell.failures} failed attempts`;
      line.append(element("td", SYMBOLS[cell.status], { class: `status ${cell.status}`, "aria-label": about, title: about }));
    }
    const button = element("button", "Remove", { "aria-label": `Remove ${row.name} from the workshop` });
    button.dataset.action = `remove ${row.id}`;
    button.onclick = () => confirm(`Remove ${row.name} and all their reports from the workshop?`) && act({ kind: "remove", learner: row.id });
    const last = element("td");
    last.append(button);
    line.append(last);
    body.append(line);
  }
  const top = element("thead");
  top.append(head);
  at("learners").replaceChildren(top, body);
  drawAttention(order);
  if (focused) {
    const again = document.querySelector(`[data-action="${CSS.escape(focused)}"]`);
    if (again) again.focus();
  }
}

function tick() {
  if (!summary) return;
  at("timer").hidden = summary.timer === null;
  const left = Math.max(0, Math.round(summary.timer - offset - Date.now() / 1000));
  at("timer").textContent = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
  at("timer").classList.toggle("over", left === 0);
}

async function request(path, options = {}) {
  const reply = await fetch(path, { ...options, headers: { "X-Board-Token": token } }).catch(() => null);
  say(reply && reply.ok ? "" : "The action was not carried out.");
  return reply && reply.ok ? reply : null;
}

const act = (content) => request("api/act", { method: "POST", body: JSON.stringify(content) });

async function save(form) {
  const reply = await request(`api/act?form=${form}`);
  if (!reply) return;
  const link = element("a", "", { href: URL.createObjectURL(await reply.blob()), download: `workshop.${form}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

at("open").addEventListener("change", () => act({ kind: "open", exercise: at("open").value || null }));
at("hide").addEventListener("change", () => act({ kind: "hide", hidden: at("hide").checked }));
at("break").addEventListener("change", () => act({ kind: "break", paused: at("break").checked }));
for (const id of ["open-form", "break-form", "hide-form"]) at(id).addEventListener("submit", (event) => event.preventDefault());
at("timer-form").addEventListener("submit", (event) => {
  event.preventDefault();
  act({ kind: "timer", ends: Date.now() / 1000 + offset + 60 * Number(at("minutes").value) });
});
at("stop-timer").addEventListener("click", () => act({ kind: "timer", ends: null }));
at("hint-form").addEventListener("submit", (event) => {
  event.preventDefault();
  act({ kind: "hint", text: at("hint").value });
  at("hint").value = "";
});
for (const button of document.querySelectorAll("[data-form]")) button.addEventListener("click", () => save(button.dataset.form));
setInterval(tick, 1000);
setInterval(() => { if (role === "instructor") drawLearners(); }, 15000);
connect();
