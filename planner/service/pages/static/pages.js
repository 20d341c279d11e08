// Findings while one types, the choice of a file, and progress as it comes. Every page works without.
"use strict";

const PAUSE_MS = 400; // in typing, before what was typed is checked

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
        (one) => `line ${one.line}: ${one.severity} ${one.code}: ${one.message}${one.help ? ` (${one.help})` : ""}`,
      ),
    ];
    if (problems.length) {
      const list = document.createElement("ul");
      lines(problems, list);
      output.replaceChildren(list);
    } else {
      output.textContent = found.checked.length ? "Nothing was found." : "This is no spec, and no config of a framework that is known.";
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

function watch(progress, status) {
  const events = new EventSource(progress.dataset.events);
  events.addEventListener("job", (event) => {
    const job = JSON.parse(event.data);
    status.textContent = job.status;
    status.className = `status ${job.status}`;
    lines(job.progress ? job.progress.lines : [], progress);
    if (job.status !== "queued" && job.status !== "running") {
      events.close();
      location.reload();
    }
  });
}

const spec = document.getElementById("spec");
if (spec) {
  const name = document.getElementById("name");
  liveLint(spec, name, document.getElementById("lint"));
  chooseFile(document.getElementById("file"), spec, name);
}
const progress = document.getElementById("progress");
if (progress) watch(progress, document.getElementById("status"));
