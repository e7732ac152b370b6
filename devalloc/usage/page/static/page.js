"use strict";
// Keeps the page up to date, and lets the tree be walked with keys. Without it the page shows all the same.

const EVERY = 2000, SLOWEST = 60000, LONGEST = 3500;
const live = document.getElementById("live"), field = document.getElementById("q");
let mark = "", wait = EVERY, timer = 0, asking = null, current = "";
let asked = new URLSearchParams(location.search);

const view = () => document.getElementById("view");
const ROW = "#tree tbody tr:not(.picture)";
const rows = () => [...document.querySelectorAll(ROW)];
const beside = (row, step) => rows()[rows().indexOf(row) + step];

// -- what is new ----------------------------------------------------------------------------------------------------

function morph(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (name !== "tabindex" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "tabindex" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  if (old.tagName === "TIME") return; // its text is written by ages()
  const known = new Map([...old.children].filter((each) => each.id).map((each) => [each.id, each]));
  const kept = new Set([...fresh.children].map((each) => each.id).filter(Boolean));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    while (place && place.id && !kept.has(place.id)) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
    const same = next.id ? known.get(next.id) : place && !place.id && place.nodeName === next.nodeName ? place : null;
    if (!same || same.nodeName !== next.nodeName) {
      old.insertBefore(document.importNode(next, true), place);
    } else {
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      if (same.nodeType !== Node.ELEMENT_NODE) {
        if (same.data !== next.data) same.data = next.data;
      } else if (!same.isEqualNode(next)) morph(same, next);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function say(text, style) {
  live.textContent = text;
  live.className = `live ${style}`;
}

async function look() {
  clearTimeout(timer);
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  try {
    const answer = await fetch(`view?${asked}`, {
      headers: mark ? { "If-None-Match": mark } : {},
      credentials: "same-origin",
      cache: "no-store",
      signal: mine.signal,
    });
    if (answer.status === 401 || answer.status === 403) {
      location.reload(); // it says why
      return;
    }
    if (answer.status === 200) {
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("view");
      const at = rows().indexOf(document.activeElement);
      morph(view(), fresh);
      mark = answer.headers.get("ETag") || "";
      settle(at);
    } else if (answer.status !== 304) throw new Error(`the controller answers ${answer.status}`);
    say(`Live, ${new Date().toLocaleTimeString()}`, "on");
    wait = EVERY;
  } catch (error) {
    if (mine.signal.aborted) return;
    say(`Not up to date: ${error.message}`, "off");
    wait = Math.min(SLOWEST, wait * 2);
  }
  ages();
  if (!document.hidden) timer = setTimeout(look, wait * (0.9 + Math.random() / 5));
}

function ages() {
  for (const each of document.querySelectorAll("time[datetime]")) {
    const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(each.dateTime)) / 1000));
    if (Number.isNaN(seconds)) continue;
    const text =
      seconds < 120 ? `${seconds}s`
      : seconds < 7200 ? `${Math.floor(seconds / 60)}m`
      : seconds < 172800 ? `${Math.floor(seconds / 3600)}h`
      : `${Math.floor(seconds / 86400)}d`;
    if (each.textContent !== text) {
      each.textContent = text;
      each.title = each.dateTime;
    }
  }
}

function ask(change) {
  change(asked);
  const open = asked.getAll("open");
  while (open.length && asked.toString().length > LONGEST) {
    open.shift();
    asked.delete("open");
    open.forEach((each) => asked.append("open", each));
  }
  const query = asked.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
  return look();
}

// -- the tree -------------------------------------------------------------------------------------------------------

// One row is in the order of Tab; what had the focus and is gone leaves it to its neighbour.
function settle(at) {
  const all = rows();
  for (const link of document.querySelectorAll("#tree .toggle")) link.tabIndex = -1;
  let row = all.find((each) => each.id === current);
  if (!row && all.length) {
    row = all[Math.max(0, Math.min(at, all.length - 1))];
    if (at >= 0) row.focus();
  }
  for (const each of all) each.tabIndex = each === row ? 0 : -1;
  current = row ? row.id : "";
}

function walk(row) {
  if (!row) return;
  for (const each of rows()) each.tabIndex = each === row ? 0 : -1;
  current = row.id;
  row.focus();
  row.scrollIntoView({ block: "nearest" });
}

function set(row, open) {
  return turn(row, row.id, open);
}

// What is open: a row of the tree, or a claim. `element` says whether it is.
function turn(element, id, open) {
  const now = element.getAttribute("aria-expanded");
  if (now === null || (now === "true") === open) return false;
  element.setAttribute("aria-expanded", String(open)); // at once; its rows come with the answer
  ask((query) => {
    const others = query.getAll("open").filter((each) => each !== id);
    query.delete("open");
    (open ? [...others, id] : others).forEach((each) => query.append("open", each));
  });
  return true;
}

function above(row) {
  const level = Number(row.getAttribute("aria-level"));
  let each = row.previousElementSibling;
  while (each && Number(each.getAttribute("aria-level")) >= level) each = each.previousElementSibling;
  return each;
}

const KEYS = {
  ArrowDown: (row) => walk(beside(row, 1)),
  ArrowUp: (row) => walk(beside(row, -1)),
  Home: () => walk(rows()[0]),
  End: () => walk(rows().at(-1)),
  ArrowRight: (row) => set(row, true) || (row.getAttribute("aria-expanded") === "true" && walk(beside(row, 1))),
  ArrowLeft: (row) => set(row, false) || walk(above(row)),
  Enter: (row) => set(row, row.getAttribute("aria-expanded") !== "true"),
  " ": (row) => set(row, row.getAttribute("aria-expanded") !== "true"),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const row = event.target.closest(ROW);
  if (event.key === "/" && event.target !== field) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.key === "Escape" && event.target === field) {
    field.value = "";
    find();
  } else if (row && KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key](row);
  }
});

document.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || !getSelection().isCollapsed) return;
  const claim = event.target.closest("#claims-table .toggle"), tile = event.target.closest(".goes");
  if (claim) {
    event.preventDefault();
    turn(claim, claim.closest("tr").id, claim.getAttribute("aria-expanded") !== "true");
    return;
  }
  if (tile) {
    event.preventDefault();
    const node = document.getElementById(tile.parentElement.id.slice("tile:".length));
    walk(node);
    if (node) set(node, true);
    return;
  }
  const row = event.target.closest(ROW);
  if (!row) return;
  event.preventDefault();
  walk(row);
  set(row, row.getAttribute("aria-expanded") !== "true");
});

// -- search ---------------------------------------------------------------------------------------------------------

let typing = 0;
function find() {
  clearTimeout(typing);
  ask((query) => (field.value.trim() ? query.set("q", field.value.trim()) : query.delete("q")));
}
field.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(find, 250);
});
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  find();
});

document.addEventListener("visibilitychange", () => !document.hidden && look());
setInterval(() => document.hidden || ages(), 1000);
ages();
settle(-1);
look();
