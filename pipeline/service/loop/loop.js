// The page of the loop: what /api/loop says, every five seconds.

const $ = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(1)} %`;

function fill(id, rows) {
  $(id).replaceChildren(
    ...rows.map((cells) => {
      const row = document.createElement("tr");
      // Texts never become markup.
      row.append(
        ...cells.map((cell) => Object.assign(document.createElement("td"), { textContent: cell })),
      );
      return row;
    }),
  );
}

async function read() {
  const key = sessionStorage.getItem("key");
  const response = await fetch("api/loop", {
    headers: key ? { Authorization: `Bearer ${key}` } : {},
  });
  if (response.status !== 401) return response.json();
  const given = prompt("Key of this service");
  if (!given) throw new Error("The service asks for a key. Reload the page to enter it.");
  sessionStorage.setItem("key", given);
  return read();
}

function show({ comparison: state, searches }) {
  const rows = state
    ? [
        ["champion", state.champion],
        ["challenger", `${state.challenger}, in ${percent(state.share)} of the searches`],
        ["interleaved searches", state.searches],
        ["wins, losses, ties", `${state.wins}, ${state.losses}, ${state.ties}`],
        ["share of wins, at 95 %", state.interval.map(percent).join(" to ")],
        ["evidence (20 promotes)", state.evidence.toPrecision(3)],
        ["clicked searches still needed", state.needed ?? "the challenger is not ahead"],
      ]
    : [["no challenger is served", ""]];
  fill("comparison", rows);
  $("state").textContent = searches ? "" : "Queries are hashed, and not shown.";
  fill(
    "searches",
    (searches ?? []).map((search) => [
      new Date(1000 * search.time).toLocaleTimeString(),
      search.query,
      search.model + (search.interleaved ? " and challenger" : ""),
      search.shown,
      search.clicked.join(", "),
    ]),
  );
}

try {
  for (;;) {
    show(await read());
    await new Promise((resolve) => setTimeout(resolve, 5000));
  }
} catch (error) {
  $("state").textContent = error.message;
}
