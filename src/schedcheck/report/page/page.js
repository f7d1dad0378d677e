"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const count = data.steps.length;
  const byId = (id) => document.getElementById(id);

  // Whatever is shown goes through here: as text, never as markup.
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  // The states after each action, unfolded from the changes.
  const states = [];
  for (const step of data.steps) {
    const state = new Map(states.length ? states[states.length - 1] : []);
    for (const [place, lane] of Object.entries(step.changes)) {
      if (lane === null) state.delete(Number(place));
      else state.set(Number(place), lane);
    }
    states.push(state);
  }
  const ownersOf = (state, block) =>
    [...state].filter(([, lane]) => lane[3] && lane[3].includes(block)).map(([place]) => place);
  const letterOf = (status) => data.letters[status] || (status ? "E" : "?");
  const nameOf = (place) => data.requests[place];

  const columns = data.steps.map(() => []);
  const head = (row, text, title) => row.append(make("th", text, { scope: "row", title: title || text }));

  const numbers = (body) => {
    const row = body.insertRow();
    head(row, "action");
    data.steps.forEach((step, index) => {
      const cell = make("th", undefined, { scope: "col" });
      if (step.bad) cell.classList.add("bad");
      cell.append(make("a", step.bad ? step.n + "!" : step.n, { href: "#s" + step.n, title: step.action }));
      row.append(cell);
      columns[index].push(cell);
    });
  };

  const request = (body, place) => {
    const row = body.insertRow();
    row.className = "request";
    head(row, nameOf(place));
    states.forEach((state, index) => {
      const cell = row.insertCell();
      const lane = state.get(place);
      if (lane) {
        cell.textContent = letterOf(lane[0]);
        cell.dataset.s = letterOf(lane[0]);
        cell.title = nameOf(place) + " " + lane[0];
      }
      columns[index].push(cell);
    });
    for (const spans of data.slots[place]) brackets(body, spans);
  };

  // A step in flight is one cell over the actions from its planning to its execution.
  const brackets = (body, spans) => {
    const row = body.insertRow();
    row.className = "flight";
    head(row, "");
    let at = 1;
    for (const [step, first, last, isOpen, tokens] of spans) {
      if (first > at) row.append(make("td", "", { colspan: first - at }));
      const cell = make("td", "+" + tokens, { colspan: last - first + 1, class: "step" });
      if (isOpen) cell.classList.add("open");
      cell.title = "step " + step + ": " + tokens + " tokens" + (isOpen ? ", in flight" : "");
      row.append(cell);
      at = last + 1;
    }
  };

  const block = (body, number) => {
    const row = body.insertRow();
    row.className = "block";
    head(row, "block " + number);
    states.forEach((state, index) => {
      const cell = row.insertCell();
      const owners = ownersOf(state, number);
      if (owners.length) {
        cell.dataset.o = owners[0] % 8;
        cell.textContent = nameOf(owners[0]).slice(0, 4) + (owners.length > 1 ? "+" : "");
        cell.title = "block " + number + ": " + owners.map(nameOf).join(" ");
      }
      columns[index].push(cell);
    });
  };

  const draw = () => {
    document.title = data.title;
    byId("title").textContent = data.title;
    byId("facts").textContent = data.facts.join(" \u00b7 ");
    const table = make("table");
    const body = table.createTBody();
    numbers(body);
    data.requests.forEach((_, place) => request(body, place));
    data.blocks.forEach((number) => block(body, number));
    byId("lanes").append(table);
    byId("legend").textContent =
      "W waits, L loads, G waits for its grammar, C for a chunk, R runs, P was preempted, E has ended; " +
      "a bracket is a step in flight with its tokens; a block is coloured by the request that holds it. " +
      "Arrow keys, Home and End go from action to action.";
    if (data.complaint) violation();
  };

  const violation = () => {
    const place = byId("violation");
    place.append(make("h2", data.title));
    const list = make("dl");
    for (const [key, text] of Object.entries(data.complaint)) list.append(make("dt", key), make("dd", text));
    place.append(list);
    if (data.page) {
      const more = make("details");
      more.append(make("summary", "The page of this invariant"), make("pre", data.page));
      place.append(more);
    }
  };

  const factsOf = (index) => {
    const facts = new Map();
    if (index < 0) return facts;
    const step = data.steps[index];
    ["waiting", "loading", "running"].forEach((key, number) => facts.set(key, step.queues[number] || "\u2013"));
    if (step.free) facts.set("free/total", step.free);
    for (const [place, lane] of states[index]) {
      const words = [lane[0] || "?"];
      if (lane[1] !== null) words.push(lane[1] + " of " + lane[2] + " tokens computed");
      if (lane[3] !== null) words.push("blocks " + (lane[3].join(" ") || "\u2013"));
      facts.set("request " + place, words.join(", "));
    }
    return facts;
  };
  const labelOf = (key) => (key.startsWith("request ") ? nameOf(Number(key.slice(8))) : key);

  let now = -1;
  const go = (index) => {
    index = Math.max(0, Math.min(count - 1, index));
    if (index === now || !count) return;
    if (now >= 0) for (const cell of columns[now]) cell.classList.remove("now");
    now = index;
    for (const cell of columns[now]) cell.classList.add("now");
    columns[now][0].scrollIntoView({ block: "nearest", inline: "nearest" });
    const step = data.steps[now];
    byId("where").textContent = step.n + " of " + count;
    const place = byId("now");
    place.replaceChildren(make("h2", step.n + "  " + step.action));
    if (step.note) place.append(make("p", step.note));
    const before = factsOf(now - 1);
    const list = make("dl", undefined, { id: "changes" });
    const show = (key, text, was) => {
      const value = make("dd", text);
      if (was !== text) {
        value.className = "changed";
        if (now > 0) value.append(make("span", "  (before: " + (was || "not there") + ")", { class: "was" }));
      }
      list.append(make("dt", labelOf(key)), value);
    };
    const after = factsOf(now);
    for (const [key, text] of after) show(key, text, before.get(key));
    for (const [key, was] of before) if (!after.has(key)) show(key, "gone", was);
    place.append(list);
    if (location.hash !== "#s" + step.n) history.replaceState(null, "", "#s" + step.n);
  };

  const fromFragment = () => {
    const found = /^#s(\d+)$/.exec(location.hash);
    const bad = data.steps.findIndex((step) => step.bad);
    go(found ? Number(found[1]) - 1 : bad >= 0 ? bad : 0);
  };

  const moves = {
    ArrowLeft: () => go(now - 1),
    ArrowRight: () => go(now + 1),
    Home: () => go(0),
    End: () => go(count - 1),
  };
  draw();
  fromFragment();
  addEventListener("hashchange", fromFragment);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey || !moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  byId("first").addEventListener("click", moves.Home);
  byId("back").addEventListener("click", moves.ArrowLeft);
  byId("on").addEventListener("click", moves.ArrowRight);
  byId("last").addEventListener("click", moves.End);
})();
