// The little of a browser that the dashboard's script asks for. Standard input: {tree, script, answers, status};
// standard output: what the page says once the script has run.
import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";

class Element {
  constructor(name, attributes = {}, children = []) {
    Object.assign(this, { localName: name, attributes: { ...attributes }, listeners: {}, parent: null });
    this.hidden = "hidden" in attributes;
    this.content = name === "template" ? new Element("fragment", {}, children) : null;
    this.children = [];
    if (!this.content) this.append(...children);
  }
  append(...added) {
    for (const one of added.flatMap((a) => (a.localName === "fragment" ? a.children : [a]))) {
      if (one instanceof Element) one.parent = this;
      this.children.push(one);
    }
  }
  replaceChildren(...added) { this.children = []; this.append(...added); }
  cloneNode() {
    const children = (this.content ?? this).children.map((one) => (one instanceof Element ? one.cloneNode() : one));
    return new Element(this.localName, this.attributes, children);
  }
  get dataset() {
    const camel = (name) => name.slice(5).replace(/-(.)/g, (_, letter) => letter.toUpperCase());
    const data = Object.entries(this.attributes).filter(([name]) => name.startsWith("data-"));
    return Object.fromEntries(data.map(([name, value]) => [camel(name), value]));
  }
  get textContent() { return this.children.map((one) => one.textContent ?? one).join(""); }
  set textContent(text) { this.children = [String(text)]; }
  matches(simple) {
    if (simple.startsWith("[")) return simple.slice(1, -1) in this.attributes;
    return simple.startsWith("#") ? this.attributes.id === simple.slice(1) : this.localName === simple;
  }
  closest(simple) { return this.matches(simple) ? this : this.parent?.closest(simple) ?? null; }
  querySelectorAll(selector) {
    const [last, ancestor] = selector.split(" ").reverse();
    const below = this.children.filter((one) => one instanceof Element);
    const here = below.filter((one) => one.matches(last) && (!ancestor || one.closest(ancestor)));
    return [...here, ...below.flatMap((one) => one.querySelectorAll(selector))];
  }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  focus() {}
}

const given = JSON.parse(readFileSync(0, "utf8"));
const build = (node) => (typeof node === "string" ? node : new Element(node[0], node[1], node[2].map(build)));
const root = build(given.tree);
const kept = {};
const document = {
  body: root.querySelector("body"),
  hidden: false,
  createElement: (name) => new Element(name),
  getElementById: (id) => root.querySelector(`#${id}`),
  querySelector: (selector) => root.querySelector(selector),
  querySelectorAll: (selector) => root.querySelectorAll(selector),
  addEventListener() {},
};
const answer = (route) => ({
  ok: given.status === 200,
  status: given.status,
  json: async () => (given.status === 200 ? given.answers[route] : { error: { message: "no" } }),
});
const sessionStorage = {
  getItem: (name) => kept[name] ?? null,
  setItem: (name, value) => { kept[name] = value; },
  removeItem: (name) => { delete kept[name]; },
};
runInNewContext(given.script, {
  document, sessionStorage, fetch: async (route) => answer(route), setTimeout: () => 1, clearTimeout() {},
  Intl, Date, Math, Number, Object, Promise, Error, String,
});
await new Promise((done) => setTimeout(done, 20));
const shown = document.getElementById("shown");
process.stdout.write(JSON.stringify({
  status: document.getElementById("status").textContent,
  shown: !shown.hidden,
  login: !document.getElementById("login").hidden,
  rows: Object.fromEntries(document.querySelectorAll("[data-rows]").map((body) => [
    body.dataset.rows,
    body.children.filter((one) => one.localName === "tr").map((row) => row.textContent.replace(/\s+/g, " ").trim()),
  ])),
  values: Object.fromEntries(document.querySelectorAll("[data-field]").map((one) => [one.dataset.field, one.textContent])),
}));
