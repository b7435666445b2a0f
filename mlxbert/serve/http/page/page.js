// The page of `mlxbert serve`. Requests come from the forms of index.html: `name` is the name of the field in the body,
// `data-as` the conversion of its text to a value. VIEWS show the replies. Text from the server becomes text nodes,
// never markup.

const EVERY = 2000; // milliseconds between two requests for the server's state
const PLACEHOLDER = "YOUR_KEY";
const HUES = 6; // the number of colors of marks, see style.css
const byId = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const decimal = (value) => value.toFixed(3);
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const plural = (number, one, several = `${one}s`) => `${count.format(number)} ${number === 1 ? one : several}`;

let key = ""; // in memory only
let asked = false; // whether the server has asked for a key
let models = [];
let again = null; // the function to call after a key is entered

/* ---- Elements ---- */

function make(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function fromTemplate(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

function bar(share) {
  const filled = make("span");
  filled.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const node = make("span", "bar", filled);
  node.setAttribute("aria-hidden", "true"); // the number is next to it
  return node;
}

// Rows of [name, share of the bar, number as text]; `long` for names that are sentences.
function bars(rows, long = false) {
  const items = rows.map(([name, share, shown]) => {
    return make("li", "", make("span", "name", name), bar(share), make("span", "number", shown));
  });
  return make("ol", long ? "bars long" : "bars", ...items);
}

// A text with marked parts: [{start, end, className, label}], offsets in code points, as the server counts them.
function marked(text, spans) {
  const points = [...text];
  const node = make("p", "text");
  let at = 0;
  for (const { start, end, className = "", label } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < at) continue;
    const mark = make("mark", className, points.slice(start, end).join(""));
    if (label) mark.append(make("small", "", `\u00a0${label}`)); // on the same line
    node.append(points.slice(at, start).join(""), mark);
    at = end;
  }
  node.append(points.slice(at).join(""));
  return node;
}

function copyButton(name, text, source = null) {
  const button = make("button", "copy", name);
  button.type = "button";
  button.addEventListener("click", () => copy(button, text(), source));
  return button;
}

// Without https, browsers give no clipboard for other addresses than loopback: there, the text is selected instead.
async function copy(button, text, source) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    if (source) getSelection().selectAllChildren(source);
    button.textContent = source ? "Selected: press Ctrl+C" : "This browser does not allow copying";
  }
  button.disabled = true; // until the label is restored
  setTimeout(() => {
    const focused = document.activeElement === document.body;
    Object.assign(button, { textContent: name, disabled: false });
    if (focused) button.focus();
  }, 1500);
}

/* ---- Passages of files ---- */

const MARKDOWN = /\.(md|markdown|mdown|mdx|qmd|rmd)$/i;
const LONGEST = 280; // maximum characters of a passage that is not expanded

// A pattern for the words of a query: long words with other endings; short words only if there are no long ones.
function wordsOf(query) {
  const words = query.match(/[\p{L}\p{N}]+/gu) ?? [];
  const long = words.filter((word) => word.length > 3 || /\P{ASCII}/u.test(word));
  const forms = (long.length ? long : words).map((word) => {
    if (/\P{ASCII}/u.test(word)) return word; // the script may have no spaces between words
    const start = `(?<![\\p{L}\\p{N}])${word}`;
    return word.length > 3 ? `${start.replace(/s$/i, "")}[\\p{L}\\p{N}]*` : `${start}(?![\\p{L}\\p{N}])`;
  });
  return new RegExp(`(${forms.join("|") || "(?!)"})`, "giu");
}

function highlighted(text, words) {
  return text.split(words).map((part, number) => (number % 2 ? make("mark", "", part) : part));
}

// Converts Markdown to plain text: removes markup, keeps words and code.
function withoutMarks(text) {
  const lines = text.replace(/^ {0,3}(#{1,6} +|(> ?)+|(```|~~~).*$)/gm, "").replace(/^( *)[-*+] +/gm, "$1• ");
  const parts = lines.split(/`([^`\n]+)`/).map((part, number) => {
    if (number % 2) return part;
    const words = part.replace(/!?\[([^[\]\n]*)\]\([^()\s]*( "[^"\n]*")?\)/g, "$1");
    return words.replace(/(\*{1,3}|(?<![\p{L}\p{N}])_{1,3})(?=\S)([^\n*_]*[^\s*_])\1(?![\p{L}\p{N}])/gu, "$2");
  });
  return parts.join("").trim();
}

// The sentences with the most words of the query, without the heading of the passage; all of a short passage.
function snippet(text, title, words) {
  const heading = title.split(" > ").pop();
  const body = text.replace(/^---\n[^]*?\n---(\n|$)/, ""); // without the front matter
  const lines = body.split("\n").filter((line) => line.trim() && line.trim() !== heading);
  const kept = lines.join(" ").replace(/\s+/g, " ").trim() || text.trim();
  const parts = [...new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(kept)].map((one) => one.segment);
  const shared = parts.map((part) => new Set((part.match(words) ?? []).map((word) => word.toLowerCase())).size);
  const first = shared.indexOf(Math.max(...shared));
  let shown = parts[first];
  for (const part of parts.slice(first + 1)) if (shown.length + part.length <= LONGEST) shown += part;
    else break;
  const cut = shown.length > LONGEST ? `${[...shown].slice(0, LONGEST).join("")} …` : shown;
  return `${first ? "… " : ""}${cut.trim()}`;
}

// An expandable passage: first its best sentences, then the whole text with its scores.
function passage(path, { query, text, title, vector_score: near, word_score: shared }) {
  const words = wordsOf(query);
  const plain = (MARKDOWN.test(path) && withoutMarks(text)) || text;
  const short = make("span", "short", ...highlighted(snippet(plain, title, words), words));
  const scores = [near !== null && `by meaning ${decimal(near)}`, shared !== null && `by words ${decimal(shared)}`];
  const told = make("p", "help", `Scores: ${scores.filter(Boolean).join(", ")}`);
  const summary = make("summary", "", short, make("span", "less", "Less"));
  return make("details", "passage", summary, make("p", "text", ...highlighted(plain, words)), told);
}

// The folder that holds all of these files, with a slash at its end.
function folderOf([first = "", ...others]) {
  let end = first.lastIndexOf("/") + 1;
  while (!others.every((path) => path.startsWith(first.slice(0, end)))) end = first.lastIndexOf("/", end - 2) + 1;
  return first.slice(0, end);
}

/* ---- Views: the elements for a reply, and a sentence, which only screen readers read out if it is `quiet` ---- */

const VIEWS = {
  "fill-mask"({ results: [{ text, masks }] }) {
    const points = [...text];
    const parts = [];
    let at = 0;
    for (const { start, end, fills } of masks) {
      const [left, right] = [points.slice(0, start).join(""), points.slice(end).join("")];
      const { token, text: filled = left + token.trim() + right } = fills[0]; // with many masks there is no text
      const kept = filled.startsWith(left) ? left : left.trimEnd(); // "##ing" removes the space before it
      const word = filled.slice(kept.length, filled.length - right.length);
      parts.push(kept.slice(points.slice(0, at).join("").length), make("mark", "", word));
      at = end;
    }
    parts.push(points.slice(at).join(""));
    const sentence = make("p", "text", ...parts);
    const lists = masks.map(({ fills }, number) => [
      make("h3", "", masks.length > 1 ? `Mask ${number + 1}` : "Words"),
      bars(fills.map(({ token, score }) => [token, score, percent(score)])),
    ]);
    return { said: `Filled: ${sentence.textContent}`, quiet: true, nodes: [sentence, ...lists.flat()] };
  },

  classify({ results: [{ labels, value, values }] }) {
    if (!labels) {
      const rows = values ?? [{ label: "Value", value }];
      const list = rows.map((row) => {
        return make("li", "", make("span", "name", row.label), make("span", "number", decimal(row.value)));
      });
      const said = rows.map((row) => `${row.label}: ${decimal(row.value)}`).join(", ");
      return { said, nodes: [make("ol", "bars plain", ...list)] };
    }
    const rows = labels.map(({ label, score, chosen }) => [chosen ? `${label} ✓` : label, score, percent(score)]);
    const chosen = labels.filter((one) => one.chosen);
    const best = labels[0].chosen === undefined ? labels.slice(0, 1) : chosen;
    const said = best.map(({ label, score }) => `${label}, ${percent(score)}`).join("; ");
    return { said: said || "No label reaches its threshold", nodes: [bars(rows)] };
  },

  tag({ results: [{ text, entities }] }) {
    const labels = [...new Set(entities.map(({ label }) => label))];
    const hue = (label) => `k${labels.indexOf(label) % HUES}`;
    const spans = entities.map((one) => ({ ...one, className: hue(one.label) }));
    const legend = labels.map((label) => {
      const found = entities.filter((one) => one.label === label);
      const mean = found.reduce((sum, one) => sum + one.score, 0) / found.length;
      const said = ` ${plural(found.length, "time")}, ${percent(mean)} on average`;
      return make("li", "", make("mark", hue(label), label), said);
    });
    const each = labels.map((label) => plural(entities.filter((one) => one.label === label).length, label, label));
    return {
      said: entities.length ? `${plural(entities.length, "part")} found: ${each.join(", ")}` : "Nothing found",
      nodes: [marked(text, spans), make("ul", "legend", ...legend)],
    };
  },

  answer({ results: [found] }, { context }) {
    const { answer, start, end, score, no_answer_score: none, spans = [] } = found;
    const rows = spans.map((span) => [span.answer, span.score, percent(span.score)]);
    return {
      said: answer === null ? "The text has no answer" : `${answer} (${percent(score)})`,
      nodes: [
        marked(context, answer === null ? [] : [{ start, end }]),
        ...(rows.length ? [make("h3", "", "Best parts"), bars(rows, true)] : []),
        make("p", "help", `No answer in the text: ${percent(none)}`),
      ],
    };
  },

  similarity: ({ results }) => ranked(results, "Nearest"),
  rerank: ({ results }) => ranked(results, "Best"),

  "next-sentence"({ results: [{ is_next: follows, score }] }) {
    const rows = [["it follows", score, percent(score)], ["it does not", 1 - score, percent(1 - score)]];
    return { said: `The second sentence ${follows ? "follows" : "does not follow"} the first`, nodes: [bars(rows)] };
  },

  replaced({ results: [{ text, tokens }] }) {
    const found = tokens.filter((one) => one.replaced);
    return {
      said: found.length ? `${plural(found.length, "token")} may be replaced` : "No token looks replaced",
      nodes: [marked(text, found.map((one) => ({ ...one, label: percent(one.score) })))],
    };
  },

  embed({ results: [{ embedding }] }) {
    const length = Math.hypot(...embedding);
    const first = embedding.slice(0, 8).map((one) => one.toFixed(4));
    return {
      said: `A vector of ${plural(embedding.length, "number")}, of length ${decimal(length)}`,
      nodes: [
        make("p", "vector", first.join("  "), embedding.length > first.length ? " …" : ""),
        copyButton("Copy all numbers", () => JSON.stringify(embedding)),
      ],
    };
  },

  search({ results }) {
    const skipped = folderOf(results.map(({ path }) => path).filter(Boolean)).length;
    const best = Math.max(...results.map((one) => one.score));
    const hits = results.map(({ path, place, page, start_line: first, end_line: last, ...hit }) => {
      const lines = first === null ? "" : first === last ? `line ${first}` : `lines ${first}–${last}`;
      const where = [place, page === null ? "" : `page ${page}`, lines].filter(Boolean).join(", ");
      const file = make("b", "", path?.slice(skipped) ?? "added");
      if (path) file.title = path;
      const from = make("p", "where", `${hit.rank}. `, file, where && `, ${where}`);
      const titles = hit.title ? [make("h3", "", hit.title)] : [];
      return make("li", "", from, bar(best > 0 ? hit.score / best : 0), ...titles, passage(path, hit));
    });
    const far = results.every((one) => one.is_close === false) ? "Nothing close; the nearest: " : "";
    return { said: `${far}${plural(hits.length, "passage")} found`, nodes: [make("ol", "hits", ...hits)] };
  },
};

// Texts by rank; scores are cosines or probabilities, or any numbers: then the best one fills its bar.
function ranked(results, name) {
  const scores = results.map((one) => one.score);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const bounded = low >= -1.001 && high <= 1.001;
  const share = (score) => (bounded ? score : (score - low + 0.05 * (high - low)) / (1.05 * (high - low) || 1));
  const rows = results.map(({ text, score }) => [text, share(score), decimal(score)]);
  return { said: `${name}: ${results[0].text} (${decimal(results[0].score)})`, nodes: [bars(rows, true)] };
}

/* ---- Requests ---- */

class Refusal extends Error {
  constructor(status, message, hint) {
    super(message);
    Object.assign(this, { status, hint });
  }
}

async function ask(route, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const request = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal };
  const response = await fetch(route, request).catch((problem) => {
    if (problem.name === "AbortError") throw problem;
    throw new Refusal(0, "the server cannot be reached", "is mlxbert serve still running?");
  });
  const reply = await response.json().catch((problem) => {
    if (problem.name === "AbortError") throw problem;
    throw new Refusal(response.status, `the server answers ${response.status}, without JSON`);
  });
  if (!response.ok) throw new Refusal(response.status, reply.error, reply.hint);
  return reply;
}

function showError(node, { message, hint }) {
  if (!node.hidden && node.firstChild?.textContent === message) return; // do not announce it again
  node.replaceChildren(make("strong", "", message), ...(hint ? [make("span", "", hint)] : []));
  node.hidden = false;
}

// The body of a form: fields marked `item` with the same name form one text, or one pair of texts.
function bodyOf(form) {
  const body = {};
  for (const { name, value, type, checked, dataset } of form.elements) {
    if (!name || !value.trim() || (type === "checkbox" && !checked)) continue;
    if (type === "checkbox") body[name] = true;
    else if (type === "number") body[name] = Number(value);
    else if (dataset.as === "lines") body[name] = value.split("\n").map((one) => one.trim()).filter(Boolean);
    else if (dataset.as === "item") body[name] = name in body ? [[...body[name], value]] : [value];
    else body[name] = value;
  }
  return body;
}

// JSON in Python's syntax; JavaScript accepts JSON unchanged.
function toPython(value, indent = "") {
  const inner = `${indent}    `;
  const block = (lines) => (lines.length ? `\n${lines.map((line) => `${inner}${line},\n`).join("")}${indent}` : "");
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${block(value.map((one) => toPython(one, inner)))}]`;
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${toPython(one, inner)}`);
    return `{${block(entries)}}`;
  }
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value);
}

const WRITTEN = {
  curl(url, body) {
    const quoted = `'${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
    const header = asked ? `  -H 'Authorization: Bearer ${PLACEHOLDER}' \\\n` : "";
    return `curl '${url}' \\\n${header}  -H 'Content-Type: application/json' \\\n  -d ${quoted}`;
  },
  python(url, body) {
    const header = asked ? `, "Authorization": "Bearer ${PLACEHOLDER}"` : "";
    return [
      "import json",
      "import urllib.request",
      "",
      `body = ${toPython(body)}`,
      "request = urllib.request.Request(",
      `    ${JSON.stringify(url)},`,
      "    data=json.dumps(body).encode(),",
      `    headers={"Content-Type": "application/json"${header}},`,
      ")",
      "with urllib.request.urlopen(request) as response:",
      '    print(json.load(response)["results"])',
    ].join("\n");
  },
  javascript(url, body) {
    const header = asked ? `, "Authorization": "Bearer ${PLACEHOLDER}"` : "";
    return [
      `const response = await fetch(${JSON.stringify(url)}, {`,
      '  method: "POST",',
      `  headers: { "Content-Type": "application/json"${header} },`,
      `  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),`,
      "});",
      "console.log((await response.json()).results);",
    ].join("\n");
  },
};

/* ---- Panels ---- */

function chooser(section, label, names) {
  const node = fromTemplate("chooser");
  const [title, select, help] = node.children;
  select.id = title.htmlFor = `${section.id}-${label.toLowerCase()}`;
  select.name = label.toLowerCase();
  title.textContent = label;
  select.append(...names.map((name) => new Option(name, name)));
  node.hidden = names.length === 1; // its value is still sent
  help.hidden = true;
  return { node, select, help };
}

function describe({ type, parameters, dtype, max_length: longest }) {
  return `${type}, ${(parameters / 1e6).toFixed(1)} M parameters, ${dtype}, at most ${count.format(longest)} tokens`;
}

// The names to choose from in a panel: models that can do its task, with models trained for it first; or indexes.
function usable({ dataset: { task, labels } }, indexes) {
  if (task === "search") return indexes;
  const fits = (model) => (labels === undefined ? model.tasks : model.any_labels).includes(task);
  const able = models.filter(fits).sort((a, b) => (b.main === task) - (a.main === task));
  return able.map((one) => one.name);
}

// Shows the facts about the selected model below the list of models.
function tellModel(select, help) {
  const show = () => (help.textContent = describe(models.find((one) => one.name === select.value)));
  select.addEventListener("change", show);
  help.id = `${select.id}-help`;
  help.hidden = false;
  select.setAttribute("aria-describedby", help.id);
  show();
}

// Shows the request in the selected language; returns the function that shows another request.
function writer(result, id, route) {
  const code = result.querySelector("pre");
  const radios = [...result.querySelectorAll("input[type=radio]")];
  let body = null;
  const write = () => {
    const language = radios.find((one) => one.checked).value;
    code.textContent = WRITTEN[language](location.origin + route, body);
  };
  for (const radio of radios) {
    radio.name = `${id}-language`;
    radio.addEventListener("change", write);
  }
  result.querySelector(".copy").addEventListener("click", (event) => copy(event.target, code.textContent, code));
  return (sent) => {
    body = sent;
    result.querySelector(".request").hidden = false;
    write();
  };
}

// Sends a form and shows the reply; sending again cancels the first request.
function runner(form, result, task, write) {
  const part = (name) => result.querySelector(`.${name}`);
  let running = null;

  function say(text, quiet = false) {
    part("said").textContent = text;
    part("said").classList.toggle("quiet", quiet);
  }

  function show(reply, sent, milliseconds) {
    const nothing = { said: "Nothing found", nodes: [] };
    const { said, quiet, nodes } = reply.results.length ? VIEWS[task](reply, sent) : nothing;
    const cut = reply.truncated?.length ? `${plural(reply.truncated.length, "text was", "texts were")} truncated` : "";
    say(cut ? `${said}. ${cut}` : said, quiet);
    part("answer").replaceChildren(...nodes);
    const tokens = reply.tokens === undefined ? "" : plural(reply.tokens, "token");
    const facts = [reply.model ?? reply.index, `${milliseconds.toFixed(0)} ms`, tokens, cut];
    part("facts").textContent = facts.filter(Boolean).join(" · ");
    part("answer").hidden = !nodes.length;
    part("facts").hidden = false;
  }

  function fail(problem) {
    say("");
    part("answer").hidden = part("facts").hidden = true;
    if (problem.status === 401) askForKey(run);
    else showError(part("error"), problem);
  }

  async function run() {
    running?.abort(); // the server removes it from its queue
    const mine = (running = new AbortController());
    const sent = bodyOf(form);
    const began = performance.now();
    part("error").hidden = true;
    say("Working …");
    result.setAttribute("aria-busy", "true");
    try {
      const reply = await ask(`/api/${task}`, sent, mine.signal);
      if (mine === running) show(reply, sent, performance.now() - began);
    } catch (problem) {
      if (mine === running) fail(problem);
    }
    if (mine !== running) return;
    result.removeAttribute("aria-busy");
    write(sent);
  }

  return run;
}

function build(section, names) {
  const task = section.id === "zero-shot" ? "classify" : section.id;
  const form = section.querySelector("form");
  const { node, select, help } = chooser(section, task === "search" ? "Index" : "Model", names);
  if (task !== "search") tellModel(select, help);
  const button = form.querySelector("button");
  const keys = make("span", "keys", "or ", make("kbd", "", "Ctrl"), " + ", make("kbd", "", "Enter"));
  const row = make("div", "row");
  button.replaceWith(row);
  row.append(button, keys);
  form.prepend(node);
  const result = fromTemplate("result");
  section.append(result);
  const run = runner(form, result, task, writer(result, section.id, `/api/${task}`));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    form.requestSubmit();
  });
}

function choose(focus) {
  const sections = [...document.querySelectorAll("main > section")];
  const first = sections.find((one) => one.dataset.task === models[0]?.main) ?? sections[0];
  const chosen = sections.find((one) => `#${one.id}` === location.hash) ?? first;
  for (const section of sections) section.hidden = section !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = chosen.querySelector("h2");
  document.title = `${title.textContent} · mlxbert`;
  if (focus) title.focus({ preventScroll: true });
}

/* ---- The server ---- */

function askForKey(then) {
  const form = byId("key");
  const error = form.querySelector(".error");
  again = then;
  const hint = "look at the key that it was started with";
  if (asked && key) showError(error, new Refusal(401, "the server does not accept this key", hint));
  asked = true;
  key = "";
  byId("server").textContent = "asks for a key";
  form.hidden = false;
  byId("key-text").value = "";
  byId("key-text").focus();
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key-text").value.trim();
  byId("key-text").value = "";
  event.target.querySelector(".error").hidden = true;
  event.target.hidden = true;
  again();
});

function buildAll(indexes) {
  for (const section of document.querySelectorAll("main > section")) {
    const names = usable(section, indexes);
    if (!names.length) {
      section.remove();
      continue;
    }
    build(section, names);
    const link = make("a", "", section.querySelector("h2").textContent);
    link.href = `#${section.id}`;
    document.querySelector("nav").append(link);
  }
  byId("body").hidden = false;
  addEventListener("hashchange", () => choose(true));
  choose(false);
}

async function start() {
  let found;
  try {
    found = await ask("/api/models");
  } catch (problem) {
    if (problem.status === 401) return askForKey(start);
    showError(byId("trouble"), problem);
    if (problem.status === 0 || problem.status === 503) setTimeout(start, EVERY); // it may be ready soon
    return;
  }
  byId("trouble").hidden = true;
  models = found.models;
  buildAll(found.indexes);
  watch();
}

// Updates the server's state regularly while the page is visible.
function watch() {
  let before = null;
  let timer = 0;
  async function look() {
    clearTimeout(timer);
    if (document.hidden) return void (before = null);
    try {
      const { version, ready, waiting, tokens, loaded } = await ask("/api/status");
      const now = performance.now();
      byId("server").textContent = `${version}, ${ready ? "ready" : "not ready"}`;
      byId("queue").textContent = waiting ? plural(waiting, "text") : "empty";
      const speed = before ? (1000 * (tokens - before.tokens)) / (now - before.now) : 0;
      byId("speed").textContent = `${count.format(Math.max(0, speed))} tokens/s`;
      byId("loaded").textContent = `${loaded.length} of ${plural(models.length, "model")}`;
      byId("loaded").title = loaded.join(", ");
      before = { tokens, now };
    } catch (problem) {
      before = null;
      byId("server").textContent = problem.status ? problem.message : "cannot be reached";
      for (const id of ["queue", "speed", "loaded"]) byId(id).textContent = "–";
    }
    timer = setTimeout(look, EVERY);
  }
  document.addEventListener("visibilitychange", look);
  look();
}

start();
