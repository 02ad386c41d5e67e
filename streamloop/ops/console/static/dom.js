// Makes elements and brings those on the page to a new state. Texts become text nodes, never markup.

const SVG = new Set(["svg", "path", "circle", "line"]);
const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown", "onclose", "oncancel"];

/** An element. `props`: attributes; `on...`: handlers; `style`: an object; false, null: left out. */
export function h(tag, props, ...children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "checked" || name === "value") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/** Another's text: in its own direction, whatever it holds. */
export function data(text, cls) {
  return h("bdi", { class: cls }, text);
}

/** Make the children of `root` those of `nodes`, and keep what stays: focus, selection, open details. */
export function show(root, ...nodes) {
  const wanted = document.createElement("div");
  add(wanted, nodes);
  children(root, wanted);
}

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && key(one) === key(other);
}

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function children(from, to) {
  const keyed = new Map();
  for (const child of from.childNodes) {
    const name = key(child);
    if (name !== null) keyed.set(name, child);
  }
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const name = key(next);
    let found = null;
    if (name !== null) {
      const known = keyed.get(name);
      if (known && same(known, next)) found = known;
    } else if (at && same(at, next)) {
      found = at;
    }
    if (found === null) {
      from.insertBefore(next, at);
    } else {
      if (found === at) at = at.nextSibling;
      else from.insertBefore(found, at);
      patch(found, next);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const { name } of [...from.attributes]) {
    if (name === "style" || name === "open" || name === "tabindex" || to.hasAttribute(name)) continue;
    from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (name === "style" || name === "open") continue;
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  if (from.style && from.style.cssText !== to.style.cssText) from.style.cssText = to.style.cssText;
  for (const name of HANDLERS) if (from[name] !== to[name]) from[name] = to[name];
  // What a person types stays his; boxes are what the state says.
  if (from.type === "checkbox" && from.checked !== to.checked) from.checked = to.checked;
  if (from.nodeName === "INPUT" || from.nodeName === "TEXTAREA" || from.nodeName === "SELECT") return;
  children(from, to);
}

/** Tell it to who can't see the page. */
export function announce(text) {
  const region = document.getElementById("announce");
  region.textContent = "";
  setTimeout(() => { region.textContent = text; }, 60);
}

/** A dialog of a form. `submit(values, form)` may throw an error, whose message is shown. */
export function dialog({ title, intro, fields, action, tone, submit }) {
  const before = document.activeElement;
  const oops = h("p", { class: "oops", role: "alert" });
  const button = h("button", { type: "submit", class: tone || "main" }, action);
  const form = h("form", { method: "dialog" },
    h("h2", { id: "dialog-title" }, title),
    intro && h("p", { class: "sub" }, intro),
    fields,
    oops,
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => box.close() }, "Cancel"), button));
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  form.onsubmit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    oops.textContent = "";
    try {
      await submit(Object.fromEntries(new FormData(form)), form);
      box.close();
    } catch (error) {
      oops.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
  box.onclose = () => {
    box.remove();
    if (before && before.isConnected) before.focus();
  };
  document.getElementById("dialogs").append(box);
  box.showModal();
  const first = form.querySelector("input:not([type=hidden]), select, textarea");
  if (first) first.focus();
  return box;
}

let fields = 0;

/** A label, its control, and a hint. */
export function field(label, control, hint) {
  const id = control.id || `field-${++fields}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: "field" },
    h("label", { for: id }, label),
    control,
    hint && h("small", { id: `${id}-hint` }, hint));
}

export function input(name, props) {
  return h("input", { type: "text", name, autocomplete: "off", autocapitalize: "off", spellcheck: "false", ...props });
}
