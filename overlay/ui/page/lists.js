// What stands beside the hosts: what is broken, who talks to whom, and the networks.
import {attr, keyed, make, shape, svg, text} from './dom.js';
import {count, rate, since} from './format.js';

const most = 15; // talks in the list

export function drawTroubles(section, list, troubles, now) {
  section.hidden = troubles.length === 0;
  keyed(list, troubles, (t) => t.key, () => make('li', '', make('span', 'mark'), make('span', 'text'), make('span', 'when')), (e, t) => {
    attr(e, 'class', t.bad ? 'bad' : 'warn');
    text(e.children[0], t.bad ? '✕' : '!');
    text(e.children[1], t.text);
    text(e.children[2], since(t.since, now));
  });
}

export function drawTalks(parts, model, view) {
  const {list, note, rest, title, clear} = parts;
  const all = model.talks.filter((t) => (!view.network || t.network === view.network) && (!view.chosen || t.from.host === view.chosen || t.to.host === view.chosen) &&
    (!view.query || [t.from.label, t.to.label, t.from.text || '', t.to.text || '', t.from.host, t.to.host].some((s) => s.toLowerCase().includes(view.query))));
  const shown = all.slice(0, most), top = Math.max(1, ...shown.map((t) => t.rate || 0));
  text(title, view.chosen ? 'Who talks on host ' + view.chosen : view.query ? 'Who talks: “' + view.query + '”' : 'Who talks to whom');
  clear.hidden = !view.chosen && !view.query && !view.network;
  keyed(list, shown, (t) => t.key, (t) => newTalk(t, view), (e, t) => drawTalk(e, t, top));
  text(rest, shown.length === 0 ? (model.talks.length ? 'No connection of these.' : 'No connections between containers now.') : all.length > most ? 'and ' + (all.length - most) + ' more' : '');
  drawNote(note, model);
}

// drawNote says which hosts don't count bytes, and what to type there.
function drawNote(note, model) {
  note.hidden = model.uncounted.length === 0;
  if (note.hidden) return;
  if (!note.firstChild) note.append(document.createTextNode(''), make('code', '', 'sysctl -w net.netfilter.nf_conntrack_acct=1'), ' there counts those of new connections.');
  const who = model.uncounted.length === model.hosts.length ? 'No host counts' : 'Not counted on ' + (model.uncounted.length > 4 ? count(model.uncounted.length, 'host') : model.uncounted.join(', ')) + ':';
  const words = who + ' the bytes of connections, so only their number is known. ';
  if (note.firstChild.data !== words) note.firstChild.data = words;
}

const newEnd = (end) => make('span', 'end', make('span', '', end.label), ...(end.kind === 'container' ? [' ', make('small', '', 'on ' + end.host)] : []));

function newTalk(t, view) {
  const look = view.looks.get(t.network);
  return make('li', 'talk', make('div', 'ends', newEnd(t.from), make('span', 'arrow', '→'), newEnd(t.to)), make('span', 'sum'),
    make('span', 'what', ...(look === undefined ? [] : [make('span', 'n' + look, shape(look))]), make('span', '', [t.network, t.protocol + (t.port ? ' ' + t.port : '')].filter(Boolean).join(' · '))),
    make('span', 'how-many'), svg('svg', {class: 'weight n' + (look ?? 7), 'aria-hidden': 'true'}, svg('rect', {class: 'back', width: '100%', height: 4, rx: 2}), svg('rect', {height: 4, rx: 2})));
}

function drawTalk(e, t, top) {
  text(e.children[1], t.rate === null ? (t.counted ? '…' : 'not counted') : (t.partly && t.connections ? '≥ ' : '') + rate(t.rate));
  attr(e.children[1], 'class', t.rate === null ? 'sum none' : 'sum');
  text(e.children[3], t.connections ? count(t.connections, 'connection') : 'ended');
  attr(e.children[4], 'visibility', t.rate === null ? 'hidden' : 'visible');
  attr(e.children[4].children[1], 'width', (100 * (t.rate || 0) / top).toFixed(1) + '%');
}

export function drawNetworks(list, model, view) {
  keyed(list, model.networks, (n) => n.name, (n) => {
    const look = view.looks.get(n.name);
    return make('li', '', make('div', 'title', make('span', 'n' + look, shape(look)), make('span', '', n.name)), make('p', 'facts'), make('p', 'facts'));
  }, (e, n) => {
    text(e.children[1], n.subnets.join(' ') + ' · ' + count(n.blocks, 'block'));
    text(e.children[2], n.containers ? count(n.containers, 'container') + ' on ' + count(n.hosts, 'host') : 'no containers');
  });
  if (!model.networks.length) keyed(list, [{name: ''}], (n) => n.name, () => make('li', 'note', 'No network spans hosts yet: cleat net create NAME --span'), () => {});
}

export function drawChips(parent, model, view, act) {
  keyed(parent, model.networks.length > 1 ? model.networks.slice(0, 12) : [], (n) => n.name, (n) => {
    const look = view.looks.get(n.name), b = make('button', 'chip n' + look, shape(look), make('span', 'label', n.name));
    b.type = 'button';
    b.addEventListener('click', () => act.network(n.name));
    return b;
  }, (b, n) => attr(b, 'aria-pressed', view.network === n.name));
}
