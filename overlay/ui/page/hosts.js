// Boxes of hosts with their containers by network.
import {attr, keyed, make, marks, shape, svg, text} from './dom.js';
import {count, rate, since} from './format.js';

const most = {rows: 8, chosen: 200}; // containers of a network that are shown in a box

export const isFew = (model) => model.hosts.length <= 8;

// drawHosts makes the boxes, and returns them by host.
export function drawHosts(parent, model, view, act) {
  const few = isFew(model), wide = few && !view.narrow, all = new Map();
  view.top = Math.max(1, ...model.hosts.map((h) => h.rate || 0));
  const columns = wide ? [model.hosts.filter((_, i) => i % 2 === 0), model.hosts.filter((_, i) => i % 2 === 1)] : [few ? model.hosts : worstFirst(model.hosts)];
  const update = (e, h) => {
    drawHost(e, h, model, view, act);
    all.set(h.name, e);
  };
  keyed(parent, columns.map((hosts, i) => ({hosts, key: (few ? 'c' : 'g') + i})), (c) => c.key, () => make('div', 'column'),
    (column, c) => keyed(column, c.hosts, (h) => h.name, (h) => newHost(h, act), update));
  return all;
}

// worstFirst puts hosts that are not well before the others: of many, they would not be seen elsewhere.
const worstFirst = (hosts) => [...hosts.filter((h) => h.state !== 'alive'), ...hosts.filter((h) => h.state === 'alive')];

const mark = () => svg('svg', {viewBox: '0 0 24 24', class: 'mark', 'aria-hidden': 'true'}, svg('circle', {cx: 12, cy: 12, r: 11}), svg('path'));

function newHost(h, act) {
  const head = make('button', 'head', mark(), make('span', 'name'), make('span', 'sum'));
  head.type = 'button';
  head.addEventListener('click', () => act.choose(h.name));
  const meta = make('div', 'meta', make('span', 'state-word'), make('span', 'address'), make('b', 'self'), make('span', 'member'), make('span', 'by'), make('span', 'flows'));
  return make('article', 'host', head, meta, make('div', 'nets'), make('span', 'to-chosen'),
    svg('svg', {class: 'load', 'aria-hidden': 'true'}, svg('rect', {height: 3})));
}

function drawHost(e, h, model, view, act) {
  const [head, meta, nets, toChosen, load] = e.children, chosen = view.chosen === h.name;
  const edge = view.chosen && !chosen ? model.edges.find((x) => (x.a === h.name && x.b === view.chosen) || (x.b === h.name && x.a === view.chosen)) : null;
  const found = view.query ? matches(h, view) : true;
  attr(e, 'class', 'host' + (chosen ? ' chosen' : '') + ((view.chosen && !chosen && !edge && h.state === 'alive') || !found ? ' faded' : ''));
  attr(e, 'data-state', h.state);
  attr(head, 'aria-expanded', chosen);
  attr(head.querySelector('.mark path'), 'd', marks[h.state]);
  text(head.children[1], h.name);
  text(head.children[2], h.state === 'alive' ? rate(h.rate) : '');
  attr(head, 'title', h.state === 'alive' ? 'Traffic of its containers' : null);
  const [word, address, self, member, by, flows] = meta.children;
  text(word, [h.word, h.state === 'alive' && !chosen ? '' : since(h.since, view.now)].filter(Boolean).join(' '));
  text(address, h.address);
  text(self, h.self ? 'this page’s host' : '');
  text(member, h.member ? 'has the registry' : '');
  text(by, h.by ? 'reached by ' + h.by : '');
  text(flows, flowText(h));
  for (const x of meta.children) x.hidden = x.textContent === '';
  text(toChosen, edge && !isFew(model) ? (edge.rate === null ? count(edge.connections, 'conn.', 'conn.') : rate(edge.rate)) : '');
  toChosen.hidden = toChosen.textContent === '';
  attr(load.firstChild, 'width', (100 * (h.state === 'alive' && h.rate || 0) / view.top).toFixed(1) + '%');
  keyed(nets, h.networks.filter((n) => n.containers.length > 0 || chosen), (n) => n.name, (n) => newNet(n, view), (x, n) => drawNet(x, h, n, view, chosen, act));
}

function flowText(h) {
  const parts = [];
  if (h.received > 0 || h.sent > 0) parts.push('other hosts ↓ ' + rate(h.received || 0) + ' ↑ ' + rate(h.sent || 0));
  if (h.within > 0) parts.push('within ' + rate(h.within));
  if (h.outsideConnections > 0) parts.push('outside ' + (h.outside === null ? count(h.outsideConnections, 'connection') : rate(h.outside)));
  return parts.join(' · ');
}

function newNet(n, view) {
  const look = view.looks.get(n.name);
  const head = make('div', 'net-head', make('span', 'n' + look, shape(look)), make('span', 'label'), make('span', 'how-many'), make('span', 'sum'));
  return make('section', 'net', head, make('p', 'blocks'), make('ul', 'rows n' + look), make('button', 'more'));
}

function drawNet(e, h, n, view, chosen, act) {
  const [head, blocks, rows, more] = e.children;
  attr(e, 'title', chosen ? null : n.name);
  attr(e, 'class', 'net' + (view.network && view.network !== n.name ? ' faded' : ''));
  text(head.children[1], n.name);
  text(head.children[2], String(n.containers.length));
  attr(head.children[2], 'title', count(n.containers.length, 'container'));
  text(head.children[3], h.state === 'alive' ? rate(n.rate) : '');
  text(blocks, chosen && n.blocks ? 'blocks ' + n.blocks.join(' ') : '');
  blocks.hidden = blocks.textContent === '';
  const limit = chosen ? most.chosen : most.rows;
  const hits = view.query ? n.containers.filter((c) => hit(c, view.query)) : [];
  const order = hits.length ? [...hits, ...n.containers.filter((c) => !hits.includes(c))] : n.containers;
  const shown = view.many && !chosen ? [] : order.slice(0, limit);
  keyed(rows, shown, (c) => c.key, (c) => newRow(c, act), (x, c) => drawRow(x, c, h, view, chosen));
  rows.hidden = shown.length === 0;
  const left = n.containers.length - shown.length;
  text(more, left > 0 ? 'and ' + left + ' more' : '');
  more.hidden = left <= 0 || chosen;
  more.type = 'button';
  more.onclick = () => act.choose(h.name);
}

function newRow(c, act) {
  const name = make('button', '');
  name.type = 'button';
  name.addEventListener('click', () => act.find(c.name));
  return make('li', 'row', name, make('span', 'sum'), make('span', 'more-text'));
}

function drawRow(e, c, h, view, chosen) {
  const [name, sum, more] = e.children;
  attr(e, 'class', 'row' + (view.query && hit(c, view.query) ? ' hit' : ''));
  text(name, c.name);
  attr(name, 'title', 'Show who talks to ' + c.name + ' (' + c.container + ')');
  text(sum, h.state === 'alive' ? rate(c.rate) : 'no data');
  const others = chosen ? c.names.slice(1) : [];
  text(more, [...c.addresses, ...others.map((n) => 'also ' + n), ...(c.ports || []).map((p) => 'port ' + p)].join(' · '));
}

// hit reports whether a container is what the reader looks for.
export const hit = (c, query) => [c.name, c.container, ...c.names, ...c.addresses, ...(c.ports || [])].some((t) => t.toLowerCase().includes(query));

const matches = (h, view) => h.name.toLowerCase().includes(view.query) || h.address.includes(view.query) ||
  h.networks.some((n) => n.containers.some((c) => hit(c, view.query)));
