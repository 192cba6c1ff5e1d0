// Lines between hosts. Where hosts are few they are in one or two columns beside a gutter, through which all lines
// go. Where they are many, only those of the chosen host are drawn, below the boxes.
import {attr, keyed, svg, text} from './dom.js';
import {count, rate} from './format.js';

export function drawEdges(layer, board, boxes, model, view) {
  const few = board.classList.contains('few'), origin = board.getBoundingClientRect(), at = new Map();
  for (const [name, e] of boxes) {
    const r = e.getBoundingClientRect();
    at.set(name, {left: r.left - origin.left, right: r.right - origin.left, top: r.top - origin.top, bottom: r.bottom - origin.top,
      x: (r.left + r.right) / 2 - origin.left, y: (r.top + r.bottom) / 2 - origin.top});
  }
  const edges = model.edges.filter((e) => at.has(e.a) && at.has(e.b) && (!view.network || e.networks.has(view.network)))
    .filter((e) => few || touches(e, view.chosen));
  const lines = few ? gutter(edges, at, origin.width) : below(edges, at);
  const taken = [];
  keyed(layer, lines, (l) => l.edge.key, () => {
    const g = svg('g', {class: 'edge'}, svg('path'), svg('rect', {rx: 9}), svg('text'));
    return g;
  }, (g, l) => {
    const [path, pill, label] = g.children, lit = touches(l.edge, view.chosen);
    attr(g, 'class', 'edge' + (l.edge.rate === null ? ' unknown' : '') + (lit ? ' lit' : view.chosen ? ' faded' : ''));
    attr(path, 'd', l.path);
    attr(path, 'stroke-width', width(l.edge).toFixed(1));
    const words = few ? labelOf(l.edge) : '';
    const place = words && free(taken, l.points, words.length * 6.6 + 14, 20, origin.width);
    attr(pill, 'visibility', place ? 'visible' : 'hidden');
    text(label, place ? words : '');
    if (!place) return;
    for (const [k, v] of Object.entries({x: place.x - place.w / 2, y: place.y - 10, width: place.w, height: 20})) attr(pill, k, v.toFixed(1));
    attr(label, 'x', place.x.toFixed(1));
    attr(label, 'y', place.y.toFixed(1));
  });
}

export const touches = (e, host) => Boolean(host) && (e.a === host || e.b === host);

export const labelOf = (e) => e.rate === null ? count(e.connections, 'conn.', 'conn.') : (e.partly ? '≥ ' : '') + rate(e.rate);

// width grows with each tenfold of the rate, from 1 kbit/s.
const width = (e) => e.rate === null ? 2 : 1.5 + Math.max(0, Math.log10(e.rate * 8 / 1000)) * 1.3;

// gutter returns lines that go through the gutter. Each host's lines leave its box side by side.
function gutter(edges, at, whole) {
  const boxes = [...at.values()], first = Math.min(...boxes.map((b) => b.left));
  const isLeft = (b) => b.left < first + 8, narrow = boxes.every(isLeft);
  const starts = Math.max(...boxes.filter(isLeft).map((b) => b.right));
  const ends = narrow ? whole : Math.min(...boxes.filter((b) => !isLeft(b)).map((b) => b.left));
  const slots = new Map();
  for (const e of edges) for (const [own, other] of [[e.a, e.b], [e.b, e.a]]) {
    if (!slots.has(own)) slots.set(own, []);
    slots.get(own).push({key: e.key, y: at.get(other).y});
  }
  const leave = (name, key) => {
    const b = at.get(name), mine = slots.get(name).sort((p, q) => p.y - q.y || (p.key < q.key ? -1 : 1));
    const gap = Math.min(18, (b.bottom - b.top - 24) / Math.max(1, mine.length - 1));
    return {x: isLeft(b) ? b.right : b.left, y: Math.min(b.y, b.top + 70) + (mine.findIndex((m) => m.key === key) - (mine.length - 1) / 2) * gap, left: isLeft(b)};
  };
  const room = ends - starts;
  return edges.map((edge) => {
    const p = leave(edge.a, edge.key), q = leave(edge.b, edge.key);
    let c1, c2;
    if (p.left !== q.left) {
      c1 = {x: p.x + (q.x - p.x) * .5, y: p.y};
      c2 = {x: p.x + (q.x - p.x) * .5, y: q.y};
    } else {
      const far = Math.min(1, Math.abs(p.y - q.y) / 900), bulge = (p.left ? 1 : -1) * room * (narrow ? .62 + .55 * far : .42 + .3 * far);
      c1 = {x: p.x + bulge, y: p.y};
      c2 = {x: q.x + bulge, y: q.y};
    }
    return curve(edge, p, c1, c2, q);
  });
}

// below returns lines from box to box.
function below(edges, at) {
  return edges.map((edge) => {
    const p = at.get(edge.a), q = at.get(edge.b), dx = q.x - p.x, dy = q.y - p.y;
    const off = {x: -dy * .12, y: dx * .12};
    return curve(edge, p, {x: p.x + dx / 3 + off.x, y: p.y + dy / 3 + off.y}, {x: p.x + dx * 2 / 3 + off.x, y: p.y + dy * 2 / 3 + off.y}, q);
  });
}

// curve returns a cubic Bézier curve with points at which its label may be, the best ones first.
function curve(edge, p, c1, c2, q) {
  const f = (v) => v.toFixed(1);
  const on = (t) => {
    const u = 1 - t, w = [u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t];
    return {x: w[0] * p.x + w[1] * c1.x + w[2] * c2.x + w[3] * q.x, y: w[0] * p.y + w[1] * c1.y + w[2] * c2.y + w[3] * q.y};
  };
  return {edge, path: `M${f(p.x)} ${f(p.y)}C${f(c1.x)} ${f(c1.y)} ${f(c2.x)} ${f(c2.y)} ${f(q.x)} ${f(q.y)}`, points: [.5, .4, .6, .3, .7].map(on)};
}

// free returns the first place for a label that no other one has, and takes it.
function free(taken, points, w, h, whole) {
  for (const {x, y} of points) {
    const p = {x: Math.min(x, whole - w / 2 - 1), y};
    if (taken.some((t) => Math.abs(t.x - p.x) < (t.w + w) / 2 + 2 && Math.abs(t.y - p.y) < h + 2)) continue;
    const place = {x: p.x, y: p.y, w};
    taken.push(place);
    return place;
  }
  return null;
}
