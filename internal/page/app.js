// The live page. The server sends what happened, as server-sent events; this script draws it. Texts
// come from other programs, so they are only ever text, never HTML.
"use strict";
(() => {
  const $ = id => document.getElementById(id);
  const el = (name, text, cls) => {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    if (cls) e.className = cls;
    return e;
  };
  const root = document.documentElement, data = document.body.dataset;
  const windowMs = +data.window, step = +data.step;
  const strip = 22;
  const narrow = matchMedia("(max-width: 760px)"), calm = matchMedia("(prefers-reduced-motion: reduce)");

  // Light and dark: as the system says, until the visitor chooses.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let theme = null, paint = {};
  try { theme = localStorage.getItem("theme"); } catch { /* no storage: as the system says */ }
  const dress = () => {
    const now = theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now;
    $("theme").querySelector("span").textContent = now === "dark" ? "Light" : "Dark";
    const style = getComputedStyle(root);
    for (const name of ["ink", "soft", "card", "grid", "line", "hold", "wait", "renew", "handoff", "stale", "pause", "good", "bad"]) {
      paint[name] = style.getPropertyValue("--" + name).trim();
    }
    stripes.clear();
  };
  const stripes = new Map();
  dark.addEventListener("change", dress);
  $("theme").addEventListener("click", () => {
    theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", theme); } catch { /* for this visit only */ }
    dress();
    draw();
  });

  // What is known. A lane has participants, each with bars, and marks.
  let lanes = new Map(), shown = [], epoch = -1, ahead = 0, lastFrame = 0, frozen = 0;
  const fresh = () => ({ bars: new Map(), past: [], marks: [], queue: [], first: null });
  const lane = id => {
    if (!lanes.has(id)) lanes.set(id, fresh());
    return lanes.get(id);
  };
  const clock = () => frozen || Date.now() + ahead;

  const close = (l, who, at) => {
    const bar = l.bars.get(who);
    if (!bar) return;
    bar.to = at;
    l.past.push(bar);
    l.bars.delete(who);
  };
  const begin = (l, e, kind) => {
    const before = l.bars.get(e.who), sleeps = before && kind === "stale" && before.pauses.some(p => !p.to);
    close(l, e.who, e.at);
    if (e.fence && l.first === null) l.first = BigInt(e.fence);
    l.bars.set(e.who, { who: e.who, kind, from: e.at, to: 0, fence: e.fence, pauses: sleeps ? [{ from: e.at, to: 0 }] : [] });
  };
  const told = new Set(["lost", "refused", "harm", "pause", "resume", "kill", "handoff", "write"]);
  const words = {
    lost: "lost its lease", refused: "was refused by the fence", harm: "did harm", pause: "is paused", resume: "runs again",
    kill: "was killed", write: "wrote",
  };
  const apply = e => {
    const l = lane(e.lane);
    switch (e.kind) {
      case "wait": case "hold": case "stale": begin(l, e, e.kind); break;
      case "free": close(l, e.who, e.at); break;
      case "kill": close(l, e.who, e.at); l.marks.push(e); break;
      case "queue": l.queue.push({ at: e.at, n: e.n || 0 }); break;
      case "pause": case "resume": {
        const bar = l.bars.get(e.who);
        if (bar && e.kind === "pause") bar.pauses.push({ from: e.at, to: 0 });
        if (bar && e.kind === "resume" && bar.pauses.length) bar.pauses[bar.pauses.length - 1].to = e.at;
        l.marks.push(e);
        break;
      }
      default: l.marks.push(e);
    }
    if (told.has(e.kind) && (e.kind !== "handoff" || e.text)) tell(e);
  };

  // The newest line of the log is the last. The log follows it, unless the visitor reads further up.
  const log = $("log"), lanePicker = $("lane"), time = at => new Date(at).toLocaleTimeString("en-GB");
  let lines = [];
  const laneOf = id => shown.find(l => l.id === id) || { title: id };
  // A fence has sixteen digits, of which the first ones are always the same. So a lane with rows
  // shows how far a fence is from the first one of the lane: such numbers are short, and grow as
  // the fences do.
  const short = (l, fence) => l.first === null ? fence : `+${(BigInt(fence) - l.first).toLocaleString("en")}`;
  const pick = li => { li.hidden = Boolean(lanePicker.value) && li.dataset.lane !== lanePicker.value; };
  lanePicker.addEventListener("change", () => {
    for (const li of log.children) pick(li);
    log.scrollTop = log.scrollHeight;
  });
  const tell = e => {
    const li = el("li", undefined, e.kind === "refused" || e.kind === "handoff" ? "good" : ["lost", "harm", "kill", "pause"].includes(e.kind) ? "bad" : "");
    li.dataset.kind = e.kind;
    li.dataset.lane = e.lane;
    const { title, rows } = laneOf(e.lane), text = e.text || words[e.kind];
    const brief = rows ? text.replace(/\b\d{12,}\b/g, fence => short(lane(e.lane), fence)) : text;
    if (brief !== text) li.title = text;
    li.append(el("time", time(e.at)), `${title}: ${e.who || "somebody"} ${brief}`);
    lines.push(li);
  };
  const flushLog = () => {
    if (!lines.length) return;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
    lines = lines.slice(-100);
    lines.forEach(pick); // now: since a line came, the visitor may have picked another lane
    log.append(...lines);
    lines = [];
    if (log.children.length > 600) for (let i = 0; i < 300; i++) log.firstChild.remove();
    if (follows) log.scrollTop = log.scrollHeight;
  };

  const forget = now => {
    const limit = now - windowMs - 2000;
    for (const l of lanes.values()) {
      l.past = l.past.filter(b => b.to > limit);
      l.marks = l.marks.filter(m => m.at > limit);
      while (l.queue.length > 1 && l.queue[1].at < limit) l.queue.shift();
    }
  };

  // The places of lanes are in the page from the start, so that nothing jumps when a lane comes or
  // goes.
  const slots = [...document.querySelectorAll(".lane")].map(box => {
    const [name, state, more] = box.firstElementChild.children, [names, canvas] = box.lastElementChild.children;
    const slot = { name, state, more, names, canvas, rows: [], bars: [] };
    // Who points at a bar gets all digits of its fence.
    canvas.addEventListener("mousemove", m => {
      const bar = slot.bars.find(b => m.offsetX >= b.from && m.offsetX <= b.to && m.offsetY >= b.y && m.offsetY <= b.y + b.height);
      const text = bar ? `${bar.who}, fence ${bar.fence}` : "";
      if (canvas.title !== text) canvas.title = text;
    });
    return slot;
  });
  const place = list => {
    shown = list;
    slots.forEach((slot, i) => {
      const rows = (shown[i] && shown[i].rows) || [];
      if (rows.join("\n") === slot.rows.join("\n")) return;
      slot.rows = rows;
      slot.names.replaceChildren(...rows.map(who => el("li", who)));
      const height = rowHeightOf(slot);
      for (const li of slot.names.children) li.style.height = height + "px";
    });
    const ids = shown.map(l => l.id), options = [...lanePicker.options].slice(1);
    if (lanePicker.value && !ids.includes(lanePicker.value)) ids.push(lanePicker.value);
    if (ids.join("\n") === options.map(o => o.value).join("\n")) return;
    const chosen = lanePicker.value;
    for (const o of options) o.remove();
    for (const id of ids) lanePicker.append(new Option(laneOf(id).title, id));
    lanePicker.value = chosen;
  };
  const rowHeightOf = slot => slot.rows.length ? Math.min((slot.canvas.clientHeight - 8) / slot.rows.length, 42) : 20;
  const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const span = ms => ms < 1000 ? Math.round(ms) + " ms" : ms < 60000 ? (ms / 1000).toFixed(1) + " s" : Math.floor(ms / 60000) + " min " + Math.round(ms % 60000 / 1000) + " s";

  const pattern = (g, color, up) => {
    const key = color + up;
    if (!stripes.has(key)) {
      const c = document.createElement("canvas"), s = 8;
      c.width = c.height = s;
      const p = c.getContext("2d");
      p.strokeStyle = color;
      p.lineWidth = 2.4;
      p.beginPath();
      for (const d of [-s, 0, s]) up ? (p.moveTo(d, s), p.lineTo(d + s, 0)) : (p.moveTo(d, 0), p.lineTo(d + s, s));
      p.stroke();
      stripes.set(key, c);
    }
    return g.createPattern(stripes.get(key), "repeat");
  };

  const drawLane = (slot, l, now) => {
    const canvas = slot.canvas, ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * ratio)) canvas.width = Math.round(w * ratio);
    if (canvas.height !== Math.round(h * ratio)) canvas.height = Math.round(h * ratio);
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    const right = w - 6, x = at => right - (now - at) / windowMs * (right - 4);
    g.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    g.fillStyle = paint.grid;
    for (let ago = step; ago <= windowMs; ago += step) g.fillRect(x(now - ago), 0, 1, h);
    const labels = [];
    slot.bars = [];
    if (!l) return;
    const bars = [...l.past, ...l.bars.values()].filter(b => !b.to || b.to > now - windowMs);
    const named = slot.rows.length > 0, rowHeight = rowHeightOf(slot), rowOf = who => Math.max(slot.rows.indexOf(who), 0);
    bars.sort((a, b) => a.from - b.from);
    for (const b of bars) {
      const y = 5 + rowOf(b.who) * rowHeight, height = rowHeight - 5;
      const from = Math.max(x(b.from), 0), to = Math.min(x(b.to || now), right), width = Math.max(to - from, 1.5);
      if (b.kind === "hold") {
        g.fillStyle = paint.hold;
        g.fillRect(from, y, width, height);
      } else {
        const color = b.kind === "wait" ? paint.wait : paint.stale;
        g.fillStyle = pattern(g, color, b.kind === "wait");
        g.fillRect(from, y, width, height);
        g.strokeStyle = color;
        g.strokeRect(from + .5, y + .5, Math.max(width - 1, .5), height - 1);
      }
      for (const p of b.pauses) {
        const a = Math.max(x(p.from), from), z = Math.min(x(p.to || now), to);
        g.fillStyle = paint.pause;
        g.fillRect(a, y + 2, Math.max(z - a, 2), height - 4);
        if (z - a > 48) {
          g.fillStyle = paint.card;
          g.fillText("paused", a + 5, y + height / 2 + .5);
        }
      }
      const fence = b.kind === "hold" && b.fence;
      if (fence) slot.bars.push({ who: b.who, fence, from, to: from + width, y, height });
      const label = named ? (fence ? `fence ${short(l, fence)}` : "") : fence ? `${b.who}  ·  fence ${fence}` : b.who || "";
      if (!b.pauses.length && label) {
        const wide = g.measureText(label).width;
        if (wide + 8 < width) labels.push(() => {
          const held = b.kind === "hold";
          g.fillStyle = held ? paint.hold : paint.card;
          g.fillRect(from + 2, y + 2, wide + 6, height - 4);
          g.fillStyle = held ? paint.card : paint.ink;
          g.fillText(label, from + 5, y + height / 2 + .5);
        });
      }
    }
    // The strip at the bottom has how many wait.
    const base = h - 3, points = l.queue.length ? l.queue : null;
    if (points) {
      const top = Math.max(...points.map(p => p.n), 1);
      g.fillStyle = pattern(g, paint.wait, true);
      points.forEach((p, i) => {
        const a = Math.max(x(p.at), 0), z = i + 1 < points.length ? x(points[i + 1].at) : right;
        if (p.n && z > 0) g.fillRect(a, base - (strip - 4) * p.n / top, Math.max(z - a, 1), (strip - 4) * p.n / top);
      });
    }
    // Renewals hide no label, and nothing hides a refusal.
    const lastOf = {}, loud = m => m.kind === "refused" || m.kind === "kill";
    const level = m => m.kind === "renew" ? 0 : loud(m) ? 2 : 1;
    for (const m of [...l.marks].sort((a, b) => level(a) - level(b))) {
      if (m.kind !== "renew") while (labels.length) labels.shift()();
      if (m.at < now - windowMs) continue;
      const row = rowOf(m.who), mx = Math.min(x(m.at), right - 3), y = 5 + row * rowHeight + (rowHeight - 5) / 2;
      const near = m.kind + row;
      if (mx - lastOf[near] < (m.kind === "renew" ? 4 : 9)) continue; // they would hide each other
      lastOf[near] = mx;
      mark(g, m.kind, mx, y);
      if (loud(m)) {
        const text = m.kind === "kill" ? "killed" : "refused by the fence", wide = g.measureText(text).width;
        const tx = mx + wide + 18 < right ? mx + 12 : mx - wide - 14;
        g.fillStyle = paint.card;
        g.fillRect(tx - 2, y - 8, wide + 4, 16);
        g.fillStyle = m.kind === "kill" ? paint.bad : paint.good;
        g.fillText(text, tx, y + .5);
      }
    }
    for (const label of labels) label();
  };

  const mark = (g, kind, x, y) => {
    const dot = (color, r, hole) => {
      g.beginPath();
      g.arc(x, y, r, 0, 7);
      g.fillStyle = hole ? paint.card : color;
      g.fill();
      g.lineWidth = 2;
      g.strokeStyle = color;
      g.stroke();
      g.lineWidth = 1;
    };
    switch (kind) {
      case "renew": g.fillStyle = paint.renew; g.fillRect(x - 1, y - 9, 2.5, 18); break;
      case "handoff":
        g.fillStyle = paint.handoff;
        g.beginPath(); g.moveTo(x - 7, y - 7); g.lineTo(x + 3, y); g.lineTo(x - 7, y + 7); g.closePath(); g.fill();
        g.strokeStyle = paint.card;
        g.stroke();
        break;
      case "write": dot(paint.good, 3.5); break;
      case "harm": dot(paint.bad, 5); break;
      case "lost": dot(paint.stale, 5.5, true); break;
      case "refused": case "kill":
        g.fillStyle = kind === "refused" ? paint.good : paint.bad;
        g.fillRect(x - 8, y - 8, 16, 16);
        g.strokeStyle = paint.card;
        g.lineWidth = 2.4;
        g.beginPath(); g.moveTo(x - 4, y - 4); g.lineTo(x + 4, y + 4); g.moveTo(x + 4, y - 4); g.lineTo(x - 4, y + 4); g.stroke();
        g.lineWidth = 1;
        break;
      case "pause": g.fillStyle = paint.ink; g.fillRect(x - 4, y - 7, 3, 14); g.fillRect(x + 1, y - 7, 3, 14); break;
      case "resume":
        g.fillStyle = paint.ink;
        g.beginPath(); g.moveTo(x - 4, y - 7); g.lineTo(x + 6, y); g.lineTo(x - 4, y + 7); g.fill();
        break;
    }
  };

  const draw = () => {
    const now = clock();
    slots.forEach((slot, i) => drawLane(slot, shown[i] && lanes.get(shown[i].id), now));
  };

  // Texts change four times a second at most; what a lane shows stands beside it in words.
  const describe = () => {
    const now = clock(), waits = [];
    slots.forEach((slot, i) => {
      const s = shown[i], l = s && lanes.get(s.id), name = s ? s.title : "\u00a0";
      write(slot.name, name);
      slot.name.title = s ? s.title : "";
      const open = l ? [...l.bars.values()] : [];
      const holders = open.filter(b => b.kind === "hold"), waiting = open.filter(b => b.kind === "wait"), stale = open.filter(b => b.kind === "stale");
      const n = waiting.length + (l && l.queue.length ? l.queue[l.queue.length - 1].n : 0);
      const who = holders.slice(0, 3).map(b => b.who).join(", ") + (holders.length > 3 ? ` and ${holders.length - 3} more` : "");
      write(slot.state, !s ? "\u00a0" : holders.length ? `${who} ${holders.length > 1 ? "hold" : "holds"} it` : stale.length ? `${stale[0].who} works without the lock` : "free");
      const full = holders.length === 1 && holders[0].fence, fence = full ? `fence ${slot.rows.length ? short(l, full) : full}` : "";
      const all = full && slot.rows.length ? `fence ${full}: the first one of this lane was ${l.first}` : "";
      if (slot.more.title !== all) slot.more.title = all;
      write(slot.more, !s ? "\u00a0" : [n ? `${n} wait` : "nobody waits", fence].filter(Boolean).join(" · "));
      slot.canvas.setAttribute("aria-label", s ? `${name}: ${slot.state.textContent}, ${slot.more.textContent}` : "no key in this lane");
      if (n && holders.length) {
        for (const b of waiting.slice(0, 4)) waits.push(`${b.who} waits ${span(now - b.from)} for ${who} (${name})`);
        if (n > Math.min(waiting.length, 4)) waits.push(`${n - Math.min(waiting.length, 4)} ${waiting.length ? "more " : ""}wait for ${who} (${name})`);
      }
    });
    const list = $("waits"), texts = waits.length ? waits : ["nobody waits"];
    texts.forEach((text, i) => {
      if (!list.children[i]) list.append(el("li"));
      write(list.children[i], text);
    });
    while (list.children.length > texts.length) list.lastChild.remove();
    flushLog();
  };

  const cards = list => {
    const box = $("cards");
    while (box.children.length > list.length) box.lastChild.remove();
    list.forEach((c, i) => {
      let card = box.children[i];
      if (!card) {
        card = el("article");
        card.append(el("h3"), el("dl"), el("p", "", "verdict"));
        box.append(card);
      }
      card.className = "card " + (c.tone || "") + (list.length === 1 ? " wide" : "");
      card.dataset.card = c.title;
      write(card.children[0], c.title);
      const dl = card.children[1], wrap = list.length === 1;
      if (dl.dataset.names !== c.facts.map(f => f.name).join("|")) {
        dl.dataset.names = c.facts.map(f => f.name).join("|");
        dl.replaceChildren(...c.facts.flatMap(f => {
          const pair = [el("dt", f.name), el("dd")];
          if (!wrap) return pair;
          const div = el("div");
          div.append(...pair);
          return [div];
        }));
      }
      const values = dl.querySelectorAll("dd");
      c.facts.forEach((f, k) => {
        write(values[k], f.value);
        values[k].className = f.tone || "";
        values[k].dataset.fact = f.name;
      });
      write(card.children[2], c.verdict || "");
      card.children[2].hidden = list.length === 1 && !c.verdict;
    });
    if ($("codes")) codes(list);
  };

  // The code of each card stands below the lanes, so that all lanes are on the first screen.
  const codes = list => list.forEach((c, i) => {
    let card = $("codes").children[i];
    if (!card) {
      card = el("article", undefined, "card");
      card.append(el("h3"), el("p", "", "from"), el("pre"));
      card.lastChild.tabIndex = 0;
      $("codes").append(card);
    }
    [c.title, c.from || "", c.code || ""].forEach((text, k) => write(card.children[k], text));
    card.lastChild.setAttribute("aria-label", `The code of ${c.title}`);
  });

  const story = $("story");
  const running = scene => {
    for (const b of document.querySelectorAll("[data-scene]")) {
      const on = b.dataset.scene === scene;
      b.setAttribute("aria-pressed", on);
      if (on && story) write(story, b.dataset.text);
    }
    for (const legend of document.querySelectorAll("[data-legend]")) legend.hidden = legend.dataset.legend !== scene;
  };

  let note = "", failed = "";
  const remark = f => {
    const sampled = f && f.left ? `Sampling: ${f.seen} events in the last second, ${f.left} of them counted and not drawn.` : "";
    write($("note"), [failed, note, sampled].filter(Boolean).join("  "));
    $("note").classList.toggle("alarm", Boolean(failed || note));
  };

  const set = {
    lanes: place, cards, note: v => { note = v; },
    scene: running, keys: () => table && table(),
  };
  const receive = f => {
    ahead = f.now - Date.now();
    lastFrame = Date.now();
    if (f.epoch !== epoch) {
      epoch = f.epoch;
      lanes = new Map();
      lines = [];
      log.replaceChildren();
    }
    for (const [name, v] of Object.entries(f.values || {})) set[name] && set[name](v);
    for (const e of f.events || []) apply(e);
    remark(f);
  };

  const live = (state, text) => {
    $("live").dataset.state = state;
    write($("live"), text);
  };
  const source = new EventSource("events");
  source.onmessage = m => { if (!frozen) live("live", "live"); receive(JSON.parse(m.data)); };
  source.onopen = () => { epoch = -1; };
  source.onerror = () => live("lost", "reconnecting");

  $("freeze").addEventListener("click", () => {
    frozen = frozen ? 0 : clock();
    $("freeze").setAttribute("aria-pressed", Boolean(frozen));
    write($("freeze").querySelector("span"), frozen ? "Go on" : "Freeze");
    live(frozen ? "frozen" : "live", frozen ? "frozen" : "live");
  });

  document.addEventListener("click", async c => {
    const b = c.target.closest("[data-do]");
    if (!b) return;
    try {
      const r = await fetch("do/" + b.dataset.do, { method: "POST" });
      failed = r.ok ? "" : (await r.text()).trim();
    } catch { failed = "The server does not answer."; }
    remark();
  });

  // The table of keys, if the page has one.
  let table = null, chosen = null;
  if ($("keys")) {
    const body = $("keys"), detail = $("detail");
    let asking = false, again = false;
    table = async () => {
      if (asking) { again = true; return; }
      asking = true;
      try {
        const r = await fetch("keys?" + new URLSearchParams({ find: $("find").value, sort: $("sort").value }));
        if (r.ok) rows(await r.json());
      } catch { /* the stream says that the server is gone */ }
      asking = false;
      if (again) { again = false; table(); }
    };
    const rows = found => {
      write($("shown"), found.total > found.rows.length ? `${found.rows.length} of ${found.total} keys` : `${found.total} keys`);
      found.rows.forEach((r, i) => {
        let tr = body.children[i];
        if (!tr) {
          tr = el("tr");
          const b = el("button");
          b.type = "button";
          tr.append(el("td"), ...[1, 2, 3, 4, 5, 6].map(() => el("td")));
          tr.firstChild.append(b);
          b.addEventListener("click", () => { chosen = b.dataset.key; look(); table(); });
          body.append(tr);
        }
        const b = tr.firstChild.firstChild;
        b.dataset.key = r.key;
        tr.className = r.key === chosen ? "on" : "";
        [r.shown, r.waiters, r.state, r.since, r.left, r.fence, r.holder].forEach((v, k) => {
          const cell = k ? tr.children[k] : b;
          write(cell, String(v));
          if (k === 6 || k === 0) cell.title = v;
        });
      });
      while (body.children.length > found.rows.length) body.lastChild.remove();
    };
    const look = async () => {
      if (chosen === null) return;
      const key = chosen;
      let d;
      try {
        const r = await fetch("key?" + new URLSearchParams({ name: key }));
        d = r.ok ? await r.json() : { title: key, facts: [["error", (await r.text()).trim()]], queue: [] };
      } catch { return; }
      if (key !== chosen) return;
      const dl = el("dl");
      for (const [name, v] of d.facts) dl.append(el("dt", name), el("dd", v));
      const parts = [el("h3", d.title), dl];
      parts.push(el("p", d.queue.length ? `The queue, the next one first${d.more ? ` (${d.more} more are not shown)` : ""}:` : "Nobody waits.", "muted"));
      const ol = el("ol");
      for (const w of d.queue) ol.append(el("li", w));
      parts.push(ol);
      if (d.break) {
        const copy = el("button", "Copy");
        copy.type = "button";
        copy.addEventListener("click", async () => {
          try { await navigator.clipboard.writeText(d.break); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(detail.querySelector("pre")); }
        });
        parts.push(el("p", "A living holder may go on working. Stop its process first. To take its lease away, run:", "muted"), el("pre", d.break), copy);
      }
      const had = detail.contains(document.activeElement) && document.activeElement !== detail;
      if (!had) detail.replaceChildren(...parts);
    };
    setInterval(look, 1000);
    $("find").addEventListener("input", table);
    $("sort").addEventListener("change", table);
  }

  document.addEventListener("keydown", k => {
    if (k.ctrlKey || k.metaKey || k.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(k.target.tagName)) return;
    const at = { p: $("freeze"), t: $("theme") }[k.key];
    if (at) at.click();
    if (k.key === "/" && $("find")) { k.preventDefault(); $("find").focus(); }
  });

  dress();
  let drawn = 0, described = 0;
  const turn = at => {
    if (!frozen && at - drawn >= (calm.matches ? 1000 : 40)) {
      drawn = at;
      forget(clock());
      draw();
    }
    if (!frozen && at - described >= 250) {
      described = at;
      describe();
    }
    requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
  addEventListener("resize", draw);
  narrow.addEventListener("change", draw);
  // While the page is hidden, nothing is drawn, and what is too old is forgotten.
  setInterval(() => { if (document.hidden) { forget(clock()); lines = lines.slice(-100); } }, 2000);
})();
