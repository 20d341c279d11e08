// Findings while one types, the choice of a file, progress as it comes, and a report's height. Every page works without.
"use strict";

const PAUSE_MS = 400; // in typing, before what was typed is checked
const AGAIN_MS = 3000; // before a plan is watched again whose events were refused
const MOST_PX = 20000; // that a report may ask for

function lines(list, element) {
  const items = list.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  });
  element.replaceChildren(...items);
}

function liveLint(spec, name, output) {
  let timer = 0;
  let asked = 0;
  async function check() {
    const number = ++asked;
    if (!spec.value.trim()) {
      output.textContent = "Nothing to check yet.";
      return;
    }
    const response = await fetch("/v1/lint", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ content: spec.value, name: /\.(ya?ml|json|toml|sh)$/.test(name.value) ? name.value : "spec.yaml" }),
    });
    const found = await response.json();
    if (number !== asked) return; // something else was typed since
    if (!response.ok) {
      output.textContent = found.detail;
      return;
    }
    const problems = [
      ...found.unreadable.map((one) => `line ${one.line ?? "?"}: ${one.message}`),
      ...found.findings.map(
        (one) =>
          `line ${one.line}${one.key ? `, ${one.key}` : ""}: ${one.message}${one.help ? `; ${one.help}` : ""}` +
          ` (${one.severity} ${one.code})`,
      ),
    ];
    if (problems.length) {
      const list = document.createElement("ul");
      lines(problems, list);
      output.replaceChildren(list);
    } else {
      output.textContent = found.checked.length ? "Nothing was found." : "This is no spec, and no config of a framework that is known: a spec has model: and batch:.";
    }
  }
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(() => check().catch(() => { output.textContent = "The server cannot be reached."; }), PAUSE_MS);
  }
  spec.addEventListener("input", soon);
  if (spec.value) soon();
}

function chooseFile(input, spec, name) {
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (!file) return;
    spec.value = await file.text();
    name.value = file.name;
    spec.dispatchEvent(new Event("input"));
  });
}

const milliseconds = (seconds) => `${(1e3 * seconds).toFixed(2)} ms`;
const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(2)} GB`;

function watch(best, progress, status) {
  const events = new EventSource(best.dataset.events);
  const figure = (id, text) => { document.getElementById(id).textContent = text; };
  events.addEventListener("job", (event) => {
    const job = JSON.parse(event.data);
    status.textContent = job.status;
    status.className = `status ${job.status}`;
    if (job.progress && job.progress.lines.length) lines(job.progress.lines, progress);
    if (job.best) {
      figure("added", milliseconds(job.best.added_s));
      figure("bound", milliseconds(job.best.bound_s));
      figure("peak", gigabytes(job.best.peak_bytes));
    }
    if (job.status !== "queued" && job.status !== "running") {
      events.close();
      location.reload();
    }
  });
  // A browser asks again by itself, but where the answer was an error: too many watched, the server or its database away.
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED) setTimeout(() => watch(best, progress, status), AGAIN_MS);
  });
}

// The report is of no site, so it is asked, and believed in one number alone.
function fit(frame) {
  window.addEventListener("message", (event) => {
    const height = event.source === frame.contentWindow ? Number(event.data.height) : 0;
    if (height > 0) frame.style.height = `${Math.min(height, MOST_PX) + 2}px`; // and its border
  });
  frame.contentWindow.postMessage({}, "*"); // where it was loaded before this script
}

for (const element of document.querySelectorAll(".with-scripts")) element.hidden = false;
const spec = document.getElementById("spec");
if (spec) {
  const name = document.getElementById("name");
  liveLint(spec, name, document.getElementById("lint"));
  chooseFile(document.getElementById("file"), spec, name);
}
const best = document.getElementById("best");
if (best) watch(best, document.getElementById("progress"), document.getElementById("status"));
const report = document.getElementById("report");
if (report) fit(report);
