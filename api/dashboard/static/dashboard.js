// Asks the routes that the page names every few seconds and fills in what its elements ask for. Its buttons
// call routes with the same key.
"use strict";

const EVERY_MS = 3000;
const KEPT_POINTS = 200;
const KEY = "headrace-api-key";
const NOTHING = "–";

const number = new Intl.NumberFormat();
const oneDigit = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });

const money = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 6 });

const formats = {
  count: (value) => number.format(value),
  rate: (value) => oneDigit.format(value),
  money: (value) => money.format(value),
  percent: (value) => `${oneDigit.format(100 * value)} %`,
  milliseconds: (value) => (value < 1000 ? `${number.format(Math.round(value))} ms` : `${oneDigit.format(value / 1000)} s`),
  duration: (value) => duration(value),
  age: (value) => duration(secondsSince(value)),
  ago: (value) => `${duration(secondsSince(value))} ago`,
  until: (value) => (secondsSince(value) < 0 ? duration(-secondsSince(value)) : NOTHING),
  paused: (value) => (value ? ", paused" : ""),
  name: (value) => ` ${value}`,
  start: (value) => `, starts in ${duration(-secondsSince(value))}`,
  text: (value) => String(value),
};

function secondsSince(time) {
  return (Date.now() - Date.parse(time)) / 1000;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function pick(data, path) {
  return path.split(".").reduce((found, name) => (found == null ? null : found[name] ?? null), data);
}

function fill(scope, data) {
  for (const element of scope.querySelectorAll("[data-field]")) {
    const value = pick(data, element.dataset.field);
    if (element.localName === "progress") {
      element.hidden = value === null;
      element.value = value ?? 0;
    } else {
      element.textContent = value === null ? element.dataset.none ?? NOTHING : formats[element.dataset.as ?? "text"](value);
    }
    if (element.dataset.history) draw(element.dataset.history, value);
  }
}

function complete(text, row, as = String) {
  return text.replace(/\{([\w.]+)\}/g, (_, path) => as(pick(row, path) ?? NOTHING));
}

function offer(scope, row) {
  for (const button of scope.querySelectorAll("[data-act]")) {
    const { act, ask: question, when, in: wanted } = button.dataset;
    button.hidden = !wanted.split(" ").includes(pick(row, when));
    button.dataset.route = complete(act, row, encodeURIComponent);
    button.addEventListener("click", () => carryOut(button.dataset.route, complete(question, row)));
  }
}

async function carryOut(route, question) {
  if (!confirm(question)) return;
  let problem = "";
  try {
    await ask(route, "POST");
  } catch (error) {
    problem = error.message;
  }
  document.getElementById("acted").textContent = problem;
  update();
}

function fillRows(data) {
  const focused = document.activeElement?.dataset.route;
  for (const body of document.querySelectorAll("[data-rows]")) {
    const template = body.querySelector("template");
    const rows = (pick(data, body.dataset.rows) ?? []).map((row) => {
      const made = template.content.cloneNode(true);
      fill(made, row);
      offer(made, row);
      return made;
    });
    body.replaceChildren(template, ...(rows.length ? rows : [emptyRow(body)]));
  }
  if (focused) document.querySelector(`[data-route="${CSS.escape(focused)}"]`)?.focus();
}

function emptyRow(body) {
  const cell = document.createElement("td");
  cell.colSpan = body.closest("table").querySelectorAll("thead th").length;
  cell.className = "empty";
  cell.textContent = body.dataset.empty;
  const row = document.createElement("tr");
  row.append(cell);
  return row;
}

const histories = {};

function draw(name, value) {
  const points = (histories[name] ??= []);
  points.push(value ?? 0);
  points.splice(0, points.length - KEPT_POINTS);
  const most = Math.max(...points);
  document.getElementById(`${name}-most`).textContent = formats.rate(most);
  const x = (i) => (600 * i) / Math.max(1, points.length - 1);
  const y = (one) => 78 - 76 * (most ? one / most : 0);
  const line = document.querySelector(`#${name} polyline`);
  line.setAttribute("points", points.map((one, i) => `${x(i).toFixed(1)},${y(one).toFixed(1)}`).join(" "));
}

class Refused extends Error {}

async function ask(route, method = "GET") {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(route, { method, headers, cache: "no-store" });
  if (answer.ok) return answer.json();
  const said = await answer.json().then((body) => body.error.message, () => `${route} answered ${answer.status}`);
  throw answer.status === 401 || answer.status === 403 ? new Refused(said) : new Error(said);
}

async function askAll() {
  const names = Object.keys(document.body.dataset).filter((name) => name.startsWith("source"));
  const answers = await Promise.all(names.map((name) => ask(document.body.dataset[name])));
  return Object.fromEntries(names.map((name, i) => [name.slice("source".length).toLowerCase(), answers[i]]));
}

const shown = document.getElementById("shown");
const login = document.getElementById("login");
const status = document.getElementById("status");
const pause = document.getElementById("pause");
const forget = document.getElementById("forget");
let timer = null;

async function update() {
  clearTimeout(timer);
  timer = null;
  try {
    const data = await askAll();
    fill(shown, data);
    fillRows(data);
    say("Up to date");
    document.getElementById("time").textContent = `as of ${new Date().toLocaleTimeString()}`;
    show(true);
  } catch (error) {
    if (error instanceof Refused) return refuse(error.message);
    say(`Not up to date: ${error.message}`);
  }
  plan();
}

function plan() {
  const isPaused = pause.getAttribute("aria-pressed") === "true";
  if (timer === null && !isPaused && !document.hidden && login.hidden) timer = setTimeout(update, EVERY_MS);
}

// Said aloud by screen readers, so only what is news.
function say(words) {
  if (status.textContent !== words) status.textContent = words;
}

function show(isAllowed) {
  shown.hidden = !isAllowed;
  login.hidden = isAllowed;
  forget.hidden = !sessionStorage.getItem(KEY);
}

function refuse(why) {
  document.getElementById("refused").textContent = sessionStorage.getItem(KEY) ? why : "";
  sessionStorage.removeItem(KEY);
  say("Not shown: an API key is needed");
  show(false);
  document.getElementById("key").focus();
}

login.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("key");
  sessionStorage.setItem(KEY, field.value.trim());
  field.value = "";
  update();
});

forget.addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  update();
});

pause.addEventListener("click", () => {
  const isPaused = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(isPaused));
  if (isPaused) clearTimeout(timer);
  timer = null;
  if (!isPaused) update();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && pause.getAttribute("aria-pressed") !== "true" && login.hidden) update();
});

update();
