// The document: elements are made once and then changed where they differ, so that nothing flickers, and focus and
// selections stay.

const svgSpace = 'http://www.w3.org/2000/svg';

// make returns a new element with a class and children.
export function make(tag, cls, ...children) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  e.append(...children);
  return e;
}

// svg returns a new element of SVG.
export function svg(tag, attrs = {}, ...children) {
  const e = document.createElementNS(svgSpace, tag);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

export function text(e, value) {
  if (e.textContent !== value) e.textContent = value;
}

export function attr(e, name, value) {
  if (value === null || value === false) e.removeAttribute(name);
  else if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value);
}

// keyed makes the children of an element those of a list: an element of each item, found by its key.
export function keyed(parent, items, keyOf, create, update) {
  const old = parent.keyed || new Map(), now = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (now.has(key)) continue;
    let e = old.get(key);
    if (!e) e = create(item);
    update(e, item);
    now.set(key, e);
  }
  for (const [key, e] of old) if (!now.has(key)) e.remove();
  let at = parent.firstElementChild;
  for (const e of now.values()) {
    if (e === at) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
  }
  parent.keyed = now;
}

// shapes distinguish networks for those who don't see their colours.
const shapes = ['M6 0A6 6 0 1 0 6 12A6 6 0 1 0 6 0', 'M1 1H11V11H1Z', 'M6 0.5L12 11.5H0Z', 'M6 0L12 6L6 12L0 6Z',
  'M4 0H8V4H12V8H8V12H4V8H0V4H4Z', 'M6 0L12 4.6L9.7 11.6H2.3L0 4.6Z', 'M0 0.5H12L6 11.5Z',
  'M6 0L7.6 4.2L12 4.5L8.6 7.3L9.7 11.7L6 9.2L2.3 11.7L3.4 7.3L0 4.5L4.4 4.2Z'];

export const shape = (look) => svg('svg', {viewBox: '0 0 12 12', class: 'shape', 'aria-hidden': 'true'}, svg('path', {d: shapes[look]}));

export const marks = {alive: 'M7.5 12.5l3 3 6-6.5', dead: 'M8.5 8.5l7 7m0-7l-7 7', silent: 'M12 7v6m0 3.6v.1', none: 'M8 12h8'};
