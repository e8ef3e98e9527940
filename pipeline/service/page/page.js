// The page: searches by the service's JSON, and orders what comes back by λ here.
//
// What comes from the service is text, and gets into the document as text only.
const PAGE = 50; // Posts shown at first in a list, and by each step more.
const CHUNK = 20; // Posts in a request for shades.
const TENTH = 10;
const PAUSE = 150; // Milliseconds after the last movement of the slider.
const PARAMETERS = ["q", "query_id", "method", "model", "hits", "time"];
const LEAST_SHARE = 1 / 20; // Families with less of the largest contribution are folded away.
const CHARACTERS = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" }; // As tweets have them.
const ENTITIES = /&(amp|lt|gt|quot|#39);/g;
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
const isWide = matchMedia("(min-width: 70rem)");
const isNarrow = matchMedia("(max-width: 45rem)");
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

let collection = null; // Answer of api/collection.
let state = {}; // Search, λ (null: the tuned one) and open post: what the URL says.
let found = null; // The current results; see arrange().
let limit = PAGE; // Posts shown in each list.
let shownTime = ""; // What the control of the time limit was filled with.
let latest = 0; // Number of the latest search: answers to earlier ones are dropped.

// ---------------------------------------------------------------- documents

/** h.p({ class: "quiet" }, "text", child): a new element; null and "" are no children. */
const h = new Proxy(
  {},
  {
    get:
      (_, name) =>
      (...parts) =>
        make(name, parts),
  },
);

function make(name, parts) {
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(key, value);
  }
  element.append(...parts.filter((part) => part !== null && part !== ""));
  return element;
}

/** The text with line breaks as spaces and other control characters as �, as in pipeline.explain. */
function visible(text) {
  return String(text)
    .replace(ENTITIES, (_, name) => CHARACTERS[name])
    .replace(/[\s\x1c-\x1f\x85]/gu, (c) => (c === "\ufeff" ? c : " "))
    .replace(/[\p{C}\p{Z}]/gu, (c) => (" \u200c\u200d".includes(c) ? c : "\ufffd"));
}

/** Characters with their shades, from [text, shade] pairs. */
function shaded(segments) {
  return segments.map(([text, step]) => (step ? h.mark({ class: `s${step}` }, text) : text));
}

/** Name of a method, model or family for everybody; signals are scores of a search. */
function named(name) {
  const [, signal] = /^signal:(.*)$/.exec(name) ?? [];
  if (signal) {
    const method = signal.replace(/^run_/, "");
    const kind = signal === method ? "search" : "official search";
    const [plain, meaning] = collection.words[method] ?? [method, ""];
    return [`${kind}: ${plain}`, meaning];
  }
  return collection.words[name] ?? [name, ""];
}

/** "plain name (technical name)". */
const both = (name) =>
  name in collection.words ? `${named(name)[0]} (${name})` : visible(name);

const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const signed = (value) =>
  (/[1-9]/.test(value.toFixed(3)) && value > 0 ? "+" : "") +
  value.toFixed(3).replace(/^-(0\.0+)$/, "$1");
const short = (value) => value.toFixed(Math.abs(value) < 10 ? 3 : 2);
const share = (value) => String(Number(value.toFixed(2)));
const moment = (time) => time.slice(0, 16).replace("T", " ");

// ---------------------------------------------------------------- service

class Failure extends Error {}

/** The JSON of an address; asks for a key where the service wants one. */
async function ask(path, parameters = [], method = "GET") {
  const query = new URLSearchParams(parameters).toString();
  for (let refused = false; ; refused = true) {
    const key = sessionStorage.getItem("key");
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    let response;
    try {
      if (method === "POST") headers["Content-Type"] = "application/json";
      response = await fetch(`api/${path}${query ? `?${query}` : ""}`, { headers, method });
    } catch {
      throw new Failure("The service does not answer.");
    }
    if (response.status === 401) {
      await askForKey(refused || key !== null);
      continue;
    }
    const content = await response.json().catch(() => ({}));
    if (response.ok) return content;
    const problem = content.error?.message ?? content.error ?? content.message ?? content.detail;
    throw new Failure(
      typeof problem === "string" ? problem : `The service answers ${response.status}.`,
    );
  }
}

let asking = null; // The dialog that is open: several requests may be refused at once.

function askForKey(isRefused) {
  asking ??= new Promise((resolve, reject) => {
    $("refused").hidden = !isRefused;
    $("key").value = "";
    const dialog = $("access");
    dialog.returnValue = "";
    dialog.onclose = () => {
      asking = null;
      const key = $("key").value;
      if (!key)
        return reject(new Failure("The service asks for a key. Reload the page to enter it."));
      sessionStorage.setItem("key", key);
      resolve();
    };
    dialog.oncancel = () => ($("key").value = "");
    dialog.showModal();
  });
  return asking;
}

// ---------------------------------------------------------------- state and URL

function stateOfUrl() {
  const given = new URLSearchParams(location.search);
  const read = Object.fromEntries(PARAMETERS.map((name) => [name, given.get(name) ?? ""]));
  const weight = Number.parseFloat(given.get("lambda"));
  return {
    ...read,
    method: read.method || collection.method,
    model: read.model || collection.models[0]?.name || "",
    hits: read.hits || String(collection.hits),
    weight: weight >= 0 && weight <= 1 ? weight : null,
    post: given.get("post") ?? "",
  };
}

/** [name, value] of those parts of the state that are not empty. */
const filled = (names) => names.filter((name) => state[name]).map((name) => [name, state[name]]);

function urlOfState() {
  const parameters = filled(PARAMETERS);
  if (state.weight !== null) parameters.push(["lambda", state.weight]);
  if (state.post) parameters.push(["post", state.post]);
  return state.q || state.query_id ? `?${new URLSearchParams(parameters)}` : location.pathname;
}

const remember = (isNew) => history[isNew ? "pushState" : "replaceState"](null, "", urlOfState());

/** Parameters of a search; a fusion has searches of its own. */
function searchParameters() {
  const isFusion = modelOf(state.model)?.has_method === false;
  return filled(PARAMETERS.filter((name) => !(isFusion && name === "method")));
}

const modelOf = (name) => collection.models.find((model) => model.name === name);
const topicOf = (text) => collection.topics.find((topic) => topic.text === text);

/** Show the state in the controls. */
function fillForm() {
  const model = modelOf(state.model);
  const topic = collection.topics.find((one) => one.query_id === state.query_id);
  showQuery({ q: state.q || topic?.text || "", time: topic?.time });
  for (const name of ["method", "model", "hits"]) {
    const select = $(name);
    if (![...select.options].some((option) => option.value === state[name])) {
      select.append(h.option({ value: state[name] }, visible(state[name])));
    }
    select.value = state[name];
  }
  $("first").hidden = !collection.methods.length || model?.has_method === false;
  $("model").title = named(model?.kind)[1];
  $("method").title = named(state.method)[1];
  $("mix").hidden = !model || model.weight === null;
  showWeight();
}

/** Show the query, and the time limit if it was chosen or is a topic's own. */
function showQuery({ q, time }) {
  $("q").value = $("q").dataset.shown = q;
  $("time").value = (state.time || time || "").slice(0, 19);
  shownTime = $("time").value;
  document.title = q ? `${visible(q)} – tweetrerank` : "tweetrerank";
}

function weight() {
  return state.weight ?? (found?.model ?? modelOf(state.model))?.weight ?? null;
}

function showWeight() {
  const tuned = modelOf(state.model)?.weight;
  const value = state.weight ?? tuned;
  if (value === null || value === undefined) return;
  $("weight").value = value;
  $("weight").setAttribute("aria-valuetext", `${share(value)} of the model`);
  $("weight-value").textContent = share(value);
  $("tuned").disabled = state.weight === null;
  $("tuned").textContent = state.weight === null ? "tuned" : `tuned: ${share(tuned)}`;
  $("tuned").title = `λ: ${modelOf(state.model).origin}`;
  $("tuned-weight").replaceChildren(h.option({ value: tuned }));
}

// ---------------------------------------------------------------- search

const setBusy = (isBusy) => document.body.setAttribute("aria-busy", String(isBusy));

async function search() {
  const number = ++latest;
  fillForm();
  showError("");
  if (!state.q && !state.query_id) {
    found = null;
    $("results").hidden = $("legend").hidden = true;
    $("start").hidden = false;
    $("status").textContent = "";
    close();
    setBusy(false);
    return;
  }
  setBusy(true);
  $("status").textContent = "Searching …";
  const started = performance.now();
  try {
    const answer = await ask("search", searchParameters());
    if (number !== latest) return;
    found = { ...answer, key: JSON.stringify(searchParameters()), number, order: [] };
    limit = PAGE;
    if ($("q").value === $("q").dataset.shown) showQuery(answer.query);
    describe(performance.now() - started);
    $("start").hidden = true;
    $("results").hidden = !found.posts.length;
    $("legend").hidden = true; // Until there are shades.
    arrange();
    if (state.post && !open(state.post))
      showError(`doc_id: post ${visible(state.post)} is not among the results`);
    if (!state.post) hideReasons();
    shade();
  } catch (error) {
    if (number !== latest) return;
    $("status").textContent = "";
    found = null;
    $("results").hidden = true;
    showError(error);
  } finally {
    if (number === latest) setBusy(false);
  }
}

function showError(error) {
  if (error && !(error instanceof Failure) && typeof error !== "string") console.error(error);
  $("error").textContent = visible(error.message ?? error);
  $("error").hidden = !error;
}

/** What was found, and in how many milliseconds. */
function describe(total) {
  const parts = Object.entries(found.milliseconds).map(
    ([name, value]) => `${named(name)[0]} ${value} ms`,
  );
  const until = found.query.time ? `, until ${moment(found.query.time)} UTC` : "";
  const time = found.kept ? "" : `, ${(total / 1000).toFixed(2)} s`;
  const count = found.posts.length ? plural(found.posts.length, "post") : "Nothing found";
  $("status").textContent = `${count}${visible(until)}${time}`;
  $("told").title = found.kept ? "" : parts.join(", ");
}

/** A new search from the controls. */
function submit() {
  const q = $("q").value.trim();
  const isNew = q !== $("q").dataset.shown;
  state = {
    q,
    query_id: topicOf(q)?.query_id ?? "",
    method: $("method").value,
    model: $("model").value,
    hits: $("hits").value,
    // A topic has a time of its own, which needs no parameter.
    time: $("time").value === shownTime ? state.time : $("time").value,
    weight: $("model").value === state.model ? state.weight : null,
    post: isNew ? "" : state.post,
  };
  $("choices").classList.remove("shown");
  $("toggle").setAttribute("aria-expanded", "false");
  remember(true);
  search();
}

// ---------------------------------------------------------------- order

/** Order of trec_eval: scores in single precision, then ids, both descending. */
function ranked(posts, score) {
  const keyed = posts.map((post) => [Math.fround(score(post)), post]);
  return keyed
    .sort((a, b) => b[0] - a[0] || byCodePoint(b[1].doc_id, a[1].doc_id))
    .map(([, post]) => post);
}

/** Strings by code point: UTF-16 would put some characters before emoji. */
function byCodePoint(a, b) {
  const [x, y] = [Array.from(a, (c) => c.codePointAt(0)), Array.from(b, (c) => c.codePointAt(0))];
  const place = x.findIndex((code, n) => code !== y[n]);
  return place < 0 ? x.length - y.length : x[place] - (y[place] ?? -1);
}

/** λ · model + (1 − λ) · first stage; a λ of 1 and a fusion leave the model's score as it is. */
function mixed(post) {
  const value = weight();
  if (value === null || value === 1) return post.neural;
  return value * post.neural_unit + (1 - value) * post.first_unit;
}

/** Put the posts into both lists by the current λ. */
function arrange() {
  if (!found) return;
  const before = ranked(found.posts, (post) => post.first);
  const neural = ranked(found.posts, (post) => post.neural);
  const after = ranked(found.posts, mixed);
  before.forEach((post, place) => (post.before = place + 1));
  neural.forEach((post, place) => (post.alone = place + 1));
  after.forEach((post, place) => (post.after = place + 1));
  found.order = { before, after };
  const value = weight();
  title("before", found.first_stage, before);
  const { name, kind } = found.model;
  title("after", kind, after, name === kind ? "" : name);
  if (value !== null) $("after-title").querySelector("small").append(`, ${share(value)} of it`);
  const old = isStill.matches ? new Map() : places();
  for (const side of ["before", "after"]) {
    const items = found.order[side].slice(0, limit).map((post) => item(post, side));
    const list = $(side).querySelector("ol");
    // A list in its order stays as it is: λ moves the posts of the other one.
    if (items.length !== list.children.length || items.some((root, n) => root !== list.children[n]))
      list.replaceChildren(...items);
  }
  move(old);
  const rest = found.posts.length - limit;
  $("further").hidden = rest <= 0;
  $("further").textContent = `Show ${Math.min(PAGE, rest)} more of ${rest}`;
  setTabStops();
  if (state.post && shownPost()) showReasons(shownPost());
}

function title(side, name, order, own = "") {
  const [of, small] = $(`${side}-title`).querySelectorAll("small");
  of.textContent = visible(own ? `${named(name)[0]}, ${own}` : named(name)[0]);
  of.title = `${visible(name)}: ${named(name)[1]}`;
  const best = order.slice(0, TENTH);
  const relevant = best.filter((post) => post.grade > 0).length;
  const isSeen = side === "after" && found.model.seen;
  const note = isSeen
    ? "trained on these judgments"
    : `${relevant} of the first ${best.length} relevant`;
  small.textContent = found.query.judged ? note : "";
}

/** Place on the screen of each post of the reranked list that is in view. */
function places() {
  const known = new Map();
  for (const element of $("after").querySelectorAll(".post")) {
    const { top, bottom } = element.getBoundingClientRect();
    if (bottom > 0 && top < innerHeight) known.set(element, top);
  }
  return known;
}

/** Let posts glide from their old places. */
function move(old) {
  for (const [element, top] of old) {
    if (!element.isConnected) continue;
    const distance = top - element.getBoundingClientRect().top;
    if (distance)
      element.animate([{ transform: `translateY(${distance}px)` }, { transform: "none" }], {
        duration: 180,
        easing: "ease-out",
      });
  }
}

// ---------------------------------------------------------------- posts

/** The list item of a post, made once for each list and search. */
function item(post, side) {
  post.items ??= {};
  const element = (post.items[side] ??= newItem(post, side));
  const gain = post.before - post.after;
  const rank = post[side];
  const arrow = gain > 0 ? `▲ ${gain}` : gain < 0 ? `▼ ${-gain}` : "";
  const [number, movement] = element.button.children;
  number.textContent = rank;
  movement.textContent = arrow;
  movement.className = `move ${gain > 0 ? "up" : gain < 0 ? "down" : ""}`;
  const other = gain
    ? `, ${gain > 0 ? "up" : "down"} ${Math.abs(gain)} from ${post.before} to ${post.after}`
    : ", same rank in both lists";
  element.button.setAttribute("aria-label", `Rank ${rank}${other}: why?`);
  element.score.textContent = short(side === "before" ? post.first : mixed(post));
  return element.root;
}

function newItem(post, side) {
  const button = h.button(
    {
      type: "button",
      class: "rank",
      tabindex: "-1",
      "aria-expanded": "false",
      "aria-controls": "why",
    },
    h.b(),
    h.span(),
  );
  const text = h.p({ class: "text", dir: "auto" });
  const score = h.span({
    class: "score",
    title: side === "before" ? "score of the search" : "score after reranking",
  });
  const url = h.span();
  const meta = h.p(
    { class: "meta" },
    h.span({ class: "grade" }, badge(post)),
    post.time ? h.time({ datetime: post.time }, moment(post.time)) : "",
    url,
    score,
  );
  const root = h.li({ class: "post" }, button, h.div({ class: "body" }, text, meta));
  root.post = post;
  root.side = side;
  const element = { root, button, text, url, score };
  write(element, post);
  return element;
}

/** Write a post's text and URL, shaded if the shades are known. */
function write(element, post) {
  element.text.replaceChildren(...textOf(post));
  element.url.replaceWith((element.url = link(post)));
}

const textOf = (post) => (post.why?.text ? shaded(post.why.text) : [visible(post.text)]);

/** The URL of a post; a link for the web's own schemes alone. */
function link(post, isWhole = false) {
  const known = post.why?.url?.length ? post.why.url : [[visible(post.url), 0]];
  const shown = shaded(
    isWhole ? known : without(known, /^https?:\/\/(www\.)?/i.exec(post.url)?.[0].length ?? 0),
  );
  if (/^https?:\/\//i.test(post.url) && URL.canParse(post.url)) {
    return h.a(
      {
        class: "url",
        href: post.url,
        dir: "ltr",
        rel: "noopener noreferrer nofollow",
        target: "_blank",
      },
      ...shown,
    );
  }
  return h.span({ class: "url", dir: "ltr" }, ...shown);
}

/** Segments without their first characters. */
function without(segments, count) {
  const rest = [];
  for (const [text, step] of segments) {
    rest.push([text.slice(count), step]);
    count = Math.max(0, count - text.length);
  }
  return rest;
}

function badge(post) {
  if (post.grade === null) return "";
  const grade = Math.min(Math.max(post.grade, 0), 2);
  return h.span({ class: `badge g${grade}`, title: "judged" }, collection.grades[grade]);
}

/** Fetch the shades of the posts on the page that have none. */
async function shade() {
  const { number, model } = found;
  if (!model.explains) return;
  const shown = new Set(["before", "after"].flatMap((side) => found.order[side].slice(0, limit)));
  const missing = [...shown].filter((post) => !post.why && !post.asked);
  missing.forEach((post) => (post.asked = true));
  try {
    for (let start = 0; start < missing.length; start += CHUNK) {
      await explain(missing.slice(start, start + CHUNK));
      if (number !== found?.number) return;
    }
  } catch {
    missing.forEach((post) => (post.asked = false)); // The texts can be read without.
  }
}

/** Fetch the explanations of posts. */
async function explain(posts) {
  const current = found;
  const answer = await ask("explain", [
    ...JSON.parse(current.key),
    ...posts.map((post) => ["doc_id", post.doc_id]),
  ]);
  const { posts: reasons, ...common } = answer;
  current.common = common;
  for (const post of posts) {
    post.why = reasons[post.doc_id];
    for (const element of Object.values(post.items ?? {})) write(element, post);
  }
  if (current === found) showLegend();
}

function showLegend() {
  $("legend").hidden = !found.common;
  if (!found.common) return;
  const marks = found.common.steps.map((name, n) => h.mark({ class: `s${n + 1}` }, name));
  $("legend")
    .querySelector("span")
    .replaceChildren(...marks);
}

// ---------------------------------------------------------------- why

const shownPost = () => found?.posts.find((post) => post.doc_id === state.post);
let opener = null; // Button that gets the focus back.

/** Show why a post ranks where it does; false if it is not among the results. */
function open(doc_id) {
  const post = found.posts.find((one) => one.doc_id === doc_id);
  if (!post) return false;
  state.post = doc_id;
  const last = Math.max(Math.min(post.before, post.after), 1);
  if (last > limit) {
    limit = Math.ceil(last / PAGE) * PAGE;
    arrange();
  }
  setTabStops();
  showReasons(post);
  if (!post.why && found.model.explains) {
    explain([post]).then(
      () => state.post === doc_id && showReasons(post),
      (error) => state.post === doc_id && showReasons(post, error.message),
    );
  }
  return true;
}

function openByHand(post, button) {
  if (state.post === post.doc_id && isWide.matches) return closeByHand();
  const isNew = !state.post;
  opener = button;
  open(post.doc_id);
  remember(isNew);
  if (!isWide.matches) $("close").focus();
}

function close() {
  state.post = "";
  hideReasons();
  if (found) setTabStops();
}

function closeByHand() {
  close();
  remember(false);
  if (opener?.isConnected) opener.focus({ preventScroll: isWide.matches });
}

function hideReasons() {
  $("why").hidden = true;
  $("results").classList.remove("explained");
}

function showReasons(post, problem = "") {
  const isNew = $("why").dataset.post !== post.doc_id || $("why").hidden;
  const wasOpen = !isNew && $("reasons").querySelector("details")?.open;
  $("why").hidden = false;
  $("why").dataset.post = post.doc_id;
  $("results").classList.add("explained");
  const gain = post.before - post.after;
  const arrow = `${gain > 0 ? "▲" : "▼"} ${Math.abs(gain)} from ${post.before}`;
  $("why-title").replaceChildren(
    `Rank ${post.after} `,
    h.small(gain ? arrow : "same rank as before"),
  );
  $("reasons").replaceChildren(
    h.p({ class: "text", dir: "auto" }, ...textOf(post)),
    h.p(
      { class: "meta" },
      badge(post),
      post.url ? link(post, true) : "no URL",
      h.span(`post ${visible(post.doc_id)}`),
    ),
    gradesOf(post),
    stages(post),
    ...reasonsOf(post, problem),
  );
  const details = $("reasons").querySelector("details");
  if (details) details.open = Boolean(wasOpen);
  if (isNew) $("why").scrollTop = 0;
}

function reasonsOf(post, problem) {
  const quiet = (text) => [h.p({ class: "quiet" }, text)];
  if (problem) return quiet(visible(problem));
  if (!found.model.explains) return quiet("This model has no explanation of its scores.");
  if (!post.why) return quiet("…");
  return (found.common.kind === "matches" ? matchesOf : contributionsOf)(post, found.common);
}

/** The post's ranks and scores at each stage. */
function stages(post) {
  const value = weight();
  const rows = [
    ["stage", "rank", "score"],
    [named(found.first_stage)[0], post.before, short(post.first)],
    [named(found.model.kind)[0], post.alone, short(post.neural)],
  ];
  if (value !== null) {
    rows[0].push("scaled × share");
    rows[1].push(`${post.first_unit.toFixed(3)} × ${share(1 - value)}`);
    rows[2].push(`${post.neural_unit.toFixed(3)} × ${share(value)}`);
    rows.push(["reranked", post.after, short(mixed(post)), ""]);
  }
  const [heads, ...cells] = rows.map((row, n) =>
    h.tr(
      ...row.map((text, m) =>
        h[n && m ? "td" : "th"](
          { scope: n && m ? null : n ? "row" : "col", class: m ? "number" : null },
          visible(text),
        ),
      ),
    ),
  );
  return h.table({ class: "stages" }, h.thead(heads), h.tbody(...cells));
}

/** The best match of each query word in each column. */
function matchesOf(post, { groups, columns, measure, steps }) {
  const { rows, further } = post.why;
  if (!rows.length)
    return [h.p({ class: "quiet" }, "The query has no words that the model reads.")];
  const top = h.tr(
    h.th({ scope: "col", rowspan: 2 }, "query"),
    h.th({ scope: "col", rowspan: 2, title: "IDF: rare words weigh more" }, "weight"),
    ...groups.map(([name, indices]) => h.th({ scope: "colgroup", colspan: indices.length }, name)),
  );
  const head = h.thead(
    top,
    h.tr(...columns.map((name) => h.th({ scope: "col" }, name.replace(/ letters$/, "")))),
  );
  const body = rows.map((row) =>
    h.tr(
      h.th({ scope: "row" }, h.bdi(visible(row.label))),
      h.td(row.weight.toFixed(2)),
      ...row.cells.map(({ score, step, where }) =>
        score === null
          ? h.td("–")
          : h.td(
              { class: step ? `s${step}` : null },
              score.toFixed(2),
              where ? h.small(h.bdi(visible(where))) : "",
            ),
      ),
    ),
  );
  const table = h.div(
    { class: "wide", role: "region", "aria-label": "Matches", tabindex: 0 },
    h.table({ class: "matches" }, head, h.tbody(...body)),
  );
  const list = h.dl(
    ...further.flatMap(({ title: name, segments }) => [
      h.dt(name),
      h.dd({ dir: "auto" }, ...shaded(segments)),
    ]),
  );
  const legend = steps.map((name, n) => h.mark({ class: `s${n + 1}` }, name));
  return [
    table,
    h.p({ class: "legend quiet" }, ...legend.flatMap((mark) => [mark, " "])),
    h.p(
      { class: "quiet" },
      `Best match of each query word, by ${measure}. A column “2 words” scores the phrase that begins with the word. The neural score is computed from these best matches.`,
    ),
    further.length ? h.details(h.summary("phrases and letters"), list) : "",
  ].filter(Boolean);
}

/** The contribution of each family of features, as bars. */
function contributionsOf(post, { base, extent, measure }) {
  const { features: parts, rows, numbers } = post.why;
  const families = rows.map((row) => ({ family: row.label, added: row.cells[0].score }));
  const [most, least] = [
    parts.filter(({ added }) => added > 0),
    parts.filter(({ added }) => added < 0).reverse(),
  ];
  const order = [...families].sort((a, b) => b.added - a.added);
  const enough = LEAST_SHARE * Math.max(...order.map(({ added }) => Math.abs(added)));
  const [large, small] = [
    order.filter(({ added }) => Math.abs(added) > enough),
    order.filter(({ added }) => Math.abs(added) <= enough),
  ];
  const bars = (rows) =>
    h.table({ class: "bars" }, h.tbody(...rows.map((row) => bar(row, extent))));
  const features = (caption, rows) =>
    rows.length
      ? h.table(
          h.caption({ class: "quiet" }, caption),
          h.tbody(
            ...rows.map(({ feature, value, added }) =>
              h.tr(
                h.th({ scope: "row" }, feature),
                h.td(
                  { class: "number" },
                  value === null ? "not known" : String(Number(value.toPrecision(4))),
                ),
                h.td({ class: "number" }, signed(added)),
              ),
            ),
          ),
        )
      : "";
  return [
    numbers ? h.p(visible(numbers)) : "",
    h.h3("What moves the post up and down"),
    bars(large),
    h.p(
      { class: "quiet" },
      "A bar to the right raises the post above the average of this search, one to the left lowers it. All posts have one scale.",
    ),
    h.details(
      h.summary("in detail, with technical names"),
      h.p(
        { class: "quiet" },
        `Sums of ${measure}. With the mean score of the search, ${signed(base)}, they add up to the post's score.`,
      ),
      glossary(order.map(({ family }) => family)),
      features("largest positive contributions: value, contribution", most),
      features("largest negative contributions: value, contribution", least),
      bars(small),
    ),
  ];
}

function bar({ family, added }, [low, high]) {
  const percent = 100 / (high - low || 1);
  const draw = (name, attributes) => {
    const shape = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    return shape;
  };
  const zero = `${-low * percent}%`;
  const image = draw("svg", { class: "bar", "aria-hidden": "true" });
  image.append(
    draw("rect", {
      class: added < 0 ? "minus" : "plus",
      x: `${(Math.min(added, 0) - low) * percent}%`,
      width: `${Math.abs(added) * percent}%`,
      height: "100%",
    }),
    draw("line", { class: "zero", x1: zero, x2: zero, y2: "100%" }),
  );
  return h.tr(
    h.th({ scope: "row", title: `${family}: ${named(family)[1]}` }, named(family)[0]),
    h.td({ class: "number" }, signed(added)),
    h.td(image),
  );
}

/** Plain name, technical name and explanation of each. */
function glossary(names) {
  return h.dl(
    ...names.flatMap((name) => [
      h.dt(named(name)[0], " ", h.code(visible(name))),
      h.dd(named(name)[1]),
    ]),
  );
}

// ---------------------------------------------------------------- grades

/** Buttons to grade a post; none where the service takes no grades. */
function gradesOf(post) {
  if (!collection.grades_file) return "";
  const buttons = Object.entries(collection.grades).map(([grade, name]) => {
    const pressed = String(post.grade === Number(grade));
    const button = h.button({ type: "button", "aria-pressed": pressed }, `${grade} ${name}`);
    button.addEventListener("click", () => giveGrade(post, Number(grade)));
    return button;
  });
  return h.div(
    { class: "grades", role: "group", "aria-label": "Grade of this post" },
    h.span("Your grade:"),
    ...buttons,
  );
}

/** Save a grade; the one that the post has is taken back. */
async function giveGrade(post, grade) {
  const current = found;
  const value = post.grade === grade ? "" : String(grade);
  const topic = filled(["q", "query_id", "time"]);
  try {
    const parameters = [...topic, ["doc_id", post.doc_id], ["grade", value]];
    const answer = await ask("grade", parameters, "POST");
    post.grade = answer.grade;
    showError("");
  } catch (error) {
    return showError(error);
  }
  if (current !== found) return;
  for (const { root } of Object.values(post.items ?? {}))
    root.querySelector(".grade").replaceChildren(badge(post));
  found.query.judged = found.posts.some((each) => each.grade !== null);
  const pressed = document.activeElement?.closest(".grades button")?.textContent;
  arrange();
  const buttons = [...document.querySelectorAll(".grades button")];
  buttons.find((button) => button.textContent === pressed)?.focus();
}

// ---------------------------------------------------------------- keyboard and pointer

/** One post of each list is reached by Tab: the open one, or the first. */
function setTabStops() {
  for (const side of ["before", "after"]) {
    const order = found.order[side].slice(0, limit);
    const stop = order.find((post) => post.doc_id === state.post) ?? order[0];
    for (const post of order) {
      const { root, button } = post.items[side];
      const isOpen = post.doc_id === state.post;
      button.tabIndex = post === stop ? 0 : -1;
      button.setAttribute("aria-expanded", String(isOpen));
      root.classList.toggle("open", isOpen);
    }
  }
}

const visibleSide = () => (isNarrow.matches ? $("results").dataset.side : null);

function focusPost(post, side) {
  if (!post) return;
  const { button, root } = post.items[side];
  for (const other of $(side).querySelectorAll(".rank[tabindex='0']")) other.tabIndex = -1;
  button.tabIndex = 0;
  button.focus({ preventScroll: true });
  root.scrollIntoView({ block: "nearest", behavior: isStill.matches ? "auto" : "smooth" });
  if (state.post && isWide.matches) {
    opener = button;
    open(post.doc_id);
    remember(false);
  }
}

/** Go to the next or previous post of the list, or to the same post in the other one. */
function step(key, root) {
  const side = root?.side ?? visibleSide() ?? "after";
  if (key === "left" || key === "right") {
    const to = key === "left" ? "before" : "after";
    if (root && !visibleSide() && side !== to && root.post[to] <= limit) focusPost(root.post, to);
    return;
  }
  const order = found.order[side].slice(0, limit);
  const post = root?.post ?? shownPost();
  const place = post ? order.indexOf(post) : -1;
  focusPost(order[post ? place + (key === "down" ? 1 : -1) : 0], side);
}

const KEYS = {
  j: "down",
  k: "up",
  ArrowDown: "down",
  ArrowUp: "up",
  ArrowLeft: "left",
  ArrowRight: "right",
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("access").open) return;
  const target = event.target;
  if (event.key === "Escape") {
    if (!$("why").hidden) closeByHand();
    else if (target === $("q")) target.blur();
    return;
  }
  if (
    target.matches("input, select, textarea") &&
    !(target.type === "range" && /^[jk/]$/.test(event.key))
  )
    return;
  if (event.key === "/") {
    event.preventDefault();
    $("q").focus();
    $("q").select();
    return;
  }
  const root = target.closest(".post");
  const graded = root?.post ?? shownPost();
  if (collection.grades_file && graded && event.key in collection.grades) {
    event.preventDefault();
    return giveGrade(graded, Number(event.key));
  }
  const isArrow = event.key.startsWith("Arrow");
  if (!found || !(event.key in KEYS) || (isArrow && !root)) return;
  event.preventDefault();
  step(KEYS[event.key], root);
}

function onClick(event) {
  const root = event.target.closest(".post");
  if (!root || event.target.closest("a")) return;
  if (event.detail && String(getSelection())) return; // Text was selected by the pointer.
  const { button } = root.post.items[root.side];
  button.focus({ preventScroll: true });
  openByHand(root.post, button);
}

/** Point at the same post in the other list. */
function onPoint(event) {
  const post = event.target.closest(".post")?.post;
  for (const old of document.querySelectorAll(".twin")) old.classList.remove("twin");
  for (const element of Object.values(post?.items ?? {})) element.root.classList.add("twin");
}

let drawing = 0;
let writing = 0;

function onWeight(value) {
  state.weight = value;
  showWeight();
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(arrange);
  // Browsers limit changes of the URL, and requests can wait for the end of a movement, too.
  clearTimeout(writing);
  writing = setTimeout(() => {
    remember(false);
    if (found) shade();
  }, PAUSE);
}

function showSide(side) {
  $("results").dataset.side = side;
  for (const button of $("tabs").children)
    button.setAttribute("aria-pressed", String(button.dataset.side === side));
}

// ---------------------------------------------------------------- start

function fillChoices() {
  $("name").textContent = visible(collection.name);
  $("size").textContent = plural(collection.posts, "post");
  $("method").replaceChildren(
    ...collection.methods.map((value) => h.option({ value }, both(value))),
  );
  $("model").replaceChildren(
    ...collection.models.map(({ name, kind }, n) =>
      h.option(
        { value: name },
        `${n ? "" : "best: "}${both(kind)}${name === kind ? "" : `, ${visible(name)}`}`,
      ),
    ),
  );
  $("terms").querySelector("dl").replaceWith(glossary(Object.keys(collection.words)));
  $("saved").hidden = $("grade-keys").hidden = !collection.grades_file;
  $("saved").textContent =
    `Grades are saved in ${visible(collection.grades_file)}, their queries in ` +
    `${visible(collection.topics_file)}: qrels and topics of a collection to train on.`;
  $("hits").replaceChildren(
    ...[20, 50, 100, 200, 500, 1000]
      .filter((value) => value <= collection.most_hits)
      .map((value) => h.option({ value }, String(value))),
  );
  $("topics").replaceChildren(...collection.topics.map((topic) => h.option({ value: topic.text })));
  $("of-topics").hidden = !collection.topics.length;
  $("suggestions").replaceChildren(
    ...collection.topics.slice(0, PAGE).map((topic) => {
      const query = new URLSearchParams({ q: topic.text, query_id: topic.query_id });
      return h.li(h.a({ href: `?${query}`, dir: "auto" }, visible(topic.text)));
    }),
  );
  $("when").hidden = !collection.clocks;
  if (collection.times) {
    $("time").min = collection.times[0].slice(0, 19);
    $("time").title = `posts from ${moment(collection.times[0])} to ${moment(collection.times[1])}`;
  }
}

function listen() {
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  for (const name of ["method", "model", "hits", "time"]) {
    $(name).addEventListener("change", () => {
      if (state.q || $("q").value.trim()) submit();
      else {
        Object.assign(state, { [name]: $(name).value, weight: null });
        fillForm();
      }
    });
  }
  $("weight").addEventListener("input", () => onWeight(Math.round($("weight").value * 100) / 100));
  $("tuned").addEventListener("click", () => onWeight(null));
  $("toggle").addEventListener("click", () => {
    const isShown = $("choices").classList.toggle("shown");
    $("toggle").setAttribute("aria-expanded", String(isShown));
  });
  $("tabs").addEventListener(
    "click",
    (event) => event.target.dataset.side && showSide(event.target.dataset.side),
  );
  $("further").addEventListener("click", () => {
    limit += PAGE;
    arrange();
    shade();
  });
  $("close").addEventListener("click", closeByHand);
  $("results").addEventListener("click", onClick);
  $("results").addEventListener("mouseover", onPoint);
  $("results").addEventListener("mouseleave", onPoint);
  $("suggestions").addEventListener("click", (event) => {
    const anchor = event.target.closest("a");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const given = new URLSearchParams(anchor.search);
    state = { ...state, q: given.get("q"), query_id: given.get("query_id"), time: "", post: "" };
    remember(true);
    search();
  });
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", restore);
  new ResizeObserver(([entry]) => {
    document.documentElement.style.setProperty(
      "--head",
      `${Math.round(entry.borderBoxSize[0].blockSize)}px`,
    );
  }).observe(document.querySelector("header"));
}

/** Go to the state of the URL. */
function restore() {
  state = stateOfUrl();
  if (!found || found.key !== JSON.stringify(searchParameters())) return search();
  fillForm();
  arrange();
  if (!state.post || !open(state.post)) close();
  shade();
}

async function begin() {
  showSide("after");
  try {
    collection = await ask("collection");
  } catch (error) {
    setBusy(false);
    return showError(error);
  }
  fillChoices();
  listen();
  state = stateOfUrl();
  await search();
  if (!state.q && !state.query_id) $("q").focus({ preventScroll: true });
}

begin();
