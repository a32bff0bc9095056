// SPDX-License-Identifier: Apache-2.0
"use strict";

const lost = document.getElementById("lost"), main = document.querySelector("main");
let since;

// Replaces the sections that differ, so that a selection in the others stays.
function replace(sections) {
  if (sections.length != main.children.length) return main.replaceChildren(...sections);
  [...main.children].forEach((old, i) => old.isEqualNode(sections[i]) || old.replaceWith(sections[i]));
}

async function update() {
  if (!document.hidden) try {
    const reply = await fetch("./" + location.search, {signal: AbortSignal.timeout(5000)});
    if (!reply.ok) throw Error("status " + reply.status);
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    replace([...page.querySelector("main").children]);
    since = null;
    lost.hidden = true;
  } catch (error) {
    if (!since) {
      since = new Date().toLocaleTimeString();
      lost.textContent = `Agent not reachable since ${since} (${error.message}). The page shows what it reported before.`;
      lost.hidden = false;
    }
  }
  setTimeout(update, 1000);
}
setTimeout(update, 1000);

function cell(row, text, type) {
  const cell = row.insertCell();
  cell.textContent = text;
  cell.className = type;
  return cell;
}

// Shows which client asks for which name.
const find = document.getElementById("find");
if (find) {
  const input = find.querySelector("input"), rows = find.querySelector("tbody"), note = find.querySelector("[role=status]");
  let pairs, read = 0;

  function show() {
    const text = input.value.toLowerCase();
    const found = text ? pairs.filter((p) => p.client.toLowerCase().includes(text) || p.name.includes(text)) : [];
    rows.replaceChildren();
    for (const p of found.slice(0, 100)) {
      const row = rows.insertRow();
      for (const text of [p.client, p.name]) {
        const link = document.createElement("a");
        link.href = "#find";
        link.textContent = text;
        cell(row, "", "").append(link);
      }
      cell(row, p.queries, "n");
      cell(row, p.failed, p.failed ? "n bad" : "n");
      cell(row, p.slowestSeconds ? `${(1000 * p.slowestSeconds).toFixed(1)} ms` : "–", "n");
    }
    note.textContent = text && (found.length > 100 ? `100 of ${found.length}` : found.length ? "" : "none");
  }

  async function search() {
    try {
      if (Date.now() - read > 5000) {
        const query = new URLSearchParams(location.search);
        query.set("by", "recent");
        const reply = await fetch("top?" + query);
        if (!reply.ok) throw Error(await reply.text());
        pairs = (await reply.json()).pairs;
        read = Date.now();
      }
      show();
    } catch (error) {
      note.textContent = error.message;
    }
  }

  find.hidden = false;
  input.oninput = search;
  document.addEventListener("click", (event) => {
    if (!event.target.matches("a[href='#find']")) return;
    input.value = event.target.textContent;
    search();
  });
}

const live = document.getElementById("live");
if (live) {
  const form = live.querySelector("form"), button = live.querySelector("button"), rows = live.querySelector("tbody"), note = live.querySelector("p");
  let stop, client;

  function add(q) {
    if (q.dropped) return note.textContent = `${q.dropped} queries left out at ${new Date().toLocaleTimeString()}`;
    if (client && !`${q.pod || ""} ${q.client}`.includes(client)) return;
    const row = rows.insertRow(0), type = ["NOERROR", "NXDOMAIN"].includes(q.rcode) ? q.source == "stale" ? "less" : "" : "bad";
    const why = [q.source, q.upstream, q.failure, q.reason, q.denied, q.below, q.list, q.rule].filter(Boolean).join(" ");
    for (const text of [q.time.slice(11, 19), `${q.name} ${q.type}`, q.rcode, why, `${(1000 * q.took_seconds).toFixed(2)} ms`, q.pod || q.client]) cell(row, text, type);
    if (rows.rows.length > 100) rows.deleteRow(100);
  }

  async function watch() {
    const query = new URLSearchParams(location.search);
    client = form.client.value;
    const [namespace, pod] = client.split("/");
    if (pod) {
      query.set("namespace", namespace);
      query.set("pod", pod);
    }
    for (const key of ["name", "rcode", "source"]) if (form[key].value) query.set(key, form[key].value);
    const reply = await fetch("watch?" + query, {signal: stop.signal});
    if (!reply.ok) throw Error(await reply.text());
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", part; !(part = await reader.read()).done;) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      lines.slice(-101).forEach((line) => add(JSON.parse(line)));
    }
    throw Error("the agent has ended the stream");
  }

  live.hidden = false;
  form.onsubmit = (event) => {
    event.preventDefault();
    if (stop) return stop.abort();
    stop = new AbortController();
    button.textContent = "Stop";
    note.textContent = "";
    watch().catch((error) => {
      if (error.name != "AbortError") note.textContent = error.message;
      stop = null;
      button.textContent = "Start";
    });
  };
}
