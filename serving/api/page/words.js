// What both parts of the page are written with: figures as words, and nodes that hold text and nothing else.

const grouped = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const whole = grouped(0), tenths = grouped(1), cents = grouped(2);
export const rate = (value) => (value === 0 || value >= 100 ? whole : tenths).format(value);
export const count = (value) => whole.format(value);
export const share = (value) => `${whole.format(value * 100)} %`;
export const seconds = (value) => (value < 0.9995 ? `${whole.format(value * 1000)} ms` : `${cents.format(value)} s`);
export function dollars(value) {
  if (value === 0 || value >= 0.995) return `$${cents.format(value)}`;
  if (value < 1e-7) return "< $0.0000001";
  return `$${new Intl.NumberFormat("en", { maximumSignificantDigits: 2, maximumFractionDigits: 9 }).format(value)}`;
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Null and undefined are unknown, and never zero. What a node shows already is left alone.
const shown = new WeakMap();
export function put(node, value, format = String) {
  const text = value === null || value === undefined ? null : format(value);
  if (shown.get(node) === text) return;
  shown.set(node, text);
  if (text !== null) node.textContent = text;
  else node.replaceChildren(element("span", { "aria-hidden": "true" }, "?"), element("span", { class: "unseen" }, "unknown"));
}

// The same with a few words below it.
export function putBoth(node, text, more) {
  shown.delete(node);
  node.replaceChildren(text, ...(more ? [element("small", {}, more)] : []));
}
