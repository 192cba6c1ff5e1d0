// Asks for pictures and shows them.
import {attr, marks, text} from './dom.js';
import {drawEdges} from './edges.js';
import {clock, count, duration, rate} from './format.js';
import {drawHosts, isFew} from './hosts.js';
import {drawChips, drawNetworks, drawTalks, drawTroubles} from './lists.js';
import {Rates, derive, lookOf} from './model.js';

const every = {few: 1000, many: 3000}; // ms between pictures
const within = 8000; // ms for an answer
const manyHosts = 16;

const el = (id) => document.getElementById(id);
const rates = new Rates();
const view = {chosen: '', query: '', network: '', now: Date.now(), narrow: false, many: false, looks: new Map()};
let model = null, failed = null, received = 0, ahead = 0, boxes = new Map(), timer = 0, asking = false;

const act = {
  choose(host) { view.chosen = view.chosen === host ? '' : host; draw(); },
  network(name) { view.network = view.network === name ? '' : name; draw(); },
  find(name) { el('search').value = view.query === name.toLowerCase() ? '' : name; search(); },
};

function search() {
  view.query = el('search').value.trim().toLowerCase();
  draw();
}

function clear() {
  view.chosen = view.network = view.query = el('search').value = '';
  draw();
}

async function poll() {
  if (asking || document.hidden) return;
  asking = true;
  clearTimeout(timer);
  try {
    const answer = await fetch('picture', {signal: AbortSignal.timeout(within), cache: 'no-store'});
    const body = await answer.json();
    if (answer.ok) {
      model = derive(body, rates);
      lookOf(view.looks, model.networks.map((n) => n.name));
      if (!model.hosts.some((h) => h.name === view.chosen)) view.chosen = '';
      if (!model.networks.some((n) => n.name === view.network)) view.network = '';
      ahead = Date.parse(body.at) - Date.now();
      received = Date.now();
      failed = null;
    } else {
      fail(body.error, body.hint);
    }
  } catch {
    fail('The server of this page does not answer', 'cleat-node ui');
  }
  asking = false;
  draw();
  timer = setTimeout(poll, model && model.hosts.length > manyHosts ? every.many : every.few);
}

function fail(error, hint) {
  if (!failed) failed = {since: Date.now()};
  failed.text = error;
  failed.hint = hint;
}

// draw makes the document show the model and the view.
function draw() {
  view.now = Date.now() + ahead;
  view.narrow = matchMedia('(max-width: 700px)').matches;
  attr(document.body, 'class', failed && model ? 'stale' : null);
  if (model) {
    view.many = !isFew(model);
    attr(el('board'), 'class', 'board ' + (view.many ? 'many' : 'few'));
    drawChips(el('chips'), model, view, act);
    boxes = drawHosts(el('boxes'), model, view, act);
    drawTalks({list: el('talk-list'), note: el('talks-note'), rest: el('talks-rest'), title: el('talks-title'), clear: el('clear')}, model, view);
    drawNetworks(el('network-list'), model, view);
    text(el('map-note'), noteOf());
    drawEdges(el('edges'), el('board'), boxes, model, view);
  }
  drawVerdict();
}

function noteOf() {
  if (model.hosts.length === 1) return 'One host. `cleat-node token` prints what another one needs to join.';
  const few = 'Lines are traffic between hosts; dotted ones have connections whose bytes are not counted. Click a host for its blocks, ports and lines.';
  return view.many ? 'Each shape is a network, and its number the containers there; the bar is the traffic of them all. Click a host for its containers, and for what it exchanges with each other one.' : few;
}

function drawVerdict() {
  const troubles = model ? [...model.troubles] : [];
  if (failed) {
    troubles.unshift({key: 'failed', bad: true, since: new Date(model ? received : failed.since).toISOString(),
      text: sentence(failed.text) + (model ? ' What you see is of ' + clock(received, Date.now()) + '.' : '') + (failed.hint ? ' Type: ' + failed.hint : '')});
  }
  drawTroubles(el('troubles'), el('trouble-list'), troubles, view.now);
  const bad = troubles.some((t) => t.bad), state = !model ? (failed ? 'bad' : 'none') : bad ? 'bad' : troubles.length ? 'warn' : 'good';
  attr(el('verdict'), 'data-state', state);
  attr(el('verdict-path'), 'd', {good: marks.alive, bad: marks.dead, warn: marks.silent, none: marks.none}[state]);
  const title = {good: 'All is well', none: 'No data yet'}[state] || (failed ? (model ? 'Stale' : 'No data') : count(troubles.length, 'thing is broken', 'things are broken'));
  text(el('verdict-title'), title);
  if (model) text(el('verdict-text'), summary());
  else if (failed) text(el('verdict-text'), 'The page goes on asking.');
  const name = (state === 'good' ? '✓ ' : '✕ ') + title + ' · Cleat';
  if (state !== 'none' && document.title !== name) document.title = name;
  drawFresh();
}

function drawFresh() {
  if (!model) return;
  const age = Date.now() - received;
  text(el('fresh'), failed ? 'stale since ' + clock(received, Date.now()) : 'cluster ' + model.cluster.slice(0, 8) + ' seen from host ' + model.self + (age > 5000 ? ' ' + duration(age) + ' ago' : ', live'));
}

function summary() {
  const alive = model.hosts.filter((h) => h.state !== 'dead').length, all = model.hosts.length;
  const between = model.edges.reduce((s, e) => s + (e.rate || 0), 0);
  return [(alive === all ? count(all, 'host') + ' alive' : alive + ' of ' + count(all, 'host') + ' alive'), count(model.networks.length, 'network'),
    count(model.containers, 'container'), between > 0 ? rate(between) + ' between hosts' : ''].filter(Boolean).join(' · ');
}

const sentence = (s) => (s.startsWith('cleat') ? s : s.charAt(0).toUpperCase() + s.slice(1)) + (s.endsWith('.') ? '' : '.');

el('search').addEventListener('input', search);
el('clear').addEventListener('click', clear);
document.addEventListener('keydown', (e) => { if (e.key === 'Escape') clear(); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
new ResizeObserver(() => { if (model) drawEdges(el('edges'), el('board'), boxes, model, view); }).observe(el('board'));
matchMedia('(max-width: 700px)').addEventListener('change', draw);
setInterval(() => { if (!document.hidden && (failed || (model && model.troubles.length))) draw(); else drawFresh(); }, 1000);
poll();
