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

const live = document.getElementById("live");
if (live) {
  const button = live.querySelector("button"), rows = live.querySelector("tbody"), note = live.querySelector("p");
  let stop;

  function add(q) {
    if (q.dropped) return note.textContent = `${q.dropped} queries left out at ${new Date().toLocaleTimeString()}`;
    const row = rows.insertRow(0);
    for (const text of [q.time.slice(11, 19), `${q.name} ${q.type}`, q.rcode, q.source, `${(1000 * q.took_seconds).toFixed(2)} ms`, q.pod || q.client]) row.insertCell().textContent = text;
    if (rows.rows.length > 100) rows.deleteRow(100);
  }

  async function watch() {
    const reply = await fetch("watch" + location.search, {signal: stop.signal});
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
  button.onclick = () => {
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
