// What the page shows, made of a picture as the node gives it. Nothing here touches the document.
import {count} from './format.js';

// Rates keeps the counters of the last picture, and makes rates in bytes per second of them.
export class Rates {
  #kept = new Map();
  #seen = new Map();
  #hosts = new Map(); // when each host measured, and whether it left something out
  #next = new Map();

  begin() { this.#seen = new Map(); this.#next = new Map(); }

  // rate returns the rate of a counter that a host measured. It is null until there are two measurements.
  rate(host, traffic, key, value) {
    const at = Date.parse(traffic.at), was = this.#kept.get(key), last = this.#hosts.get(host);
    this.#next.set(host, {at, left: traffic.left || 0});
    let now = null;
    if (was && was.host !== host) now = null; // another host's counters
    else if (was && was.at === at) now = was.rate;
    else if (was && at > was.at && value >= was.value) now = this.#smooth(was.rate, (value - was.value) / (at - was.at) * 1000);
    else if (!was && last && at > last.at && !last.left) now = value / (at - last.at) * 1000; // it began since then
    this.#seen.set(key, {host, at, value, rate: now});
    return now;
  }

  #smooth(old, now) { return old === null || now === 0 ? now : 0.4 * old + 0.6 * now; }

  end() {
    this.#kept = this.#seen;
    for (const [host, v] of this.#next) this.#hosts.set(host, v);
  }
}

export const looks = 8; // colours and shapes of networks

// lookOf gives networks colours and shapes: the same ones as long as the page is open, and mostly after that too.
export function lookOf(kept, names) {
  const used = new Set(names.map((n) => kept.get(n)).filter((n) => n !== undefined));
  for (const name of names) {
    if (kept.has(name)) continue;
    let h = 0;
    for (const c of name) h = (h * 31 + c.codePointAt(0)) >>> 0;
    let i = h % looks;
    while (used.size < looks && used.has(i)) i = (i + 1) % looks;
    used.add(i);
    kept.set(name, i);
  }
}

const sum = (a, b) => a === null ? b : b === null ? a : a + b;

// shortName returns a container's name without its manager.
const shortName = (c) => c.names && c.names.length ? c.names[0] : c.container.slice(c.container.indexOf(':') + 1);

// hostState returns how a host is, and since when.
function hostState(p, h) {
  const r = p.reports[h.name];
  if (!h.alive) return {state: 'dead', word: 'not alive', since: h.since};
  if (r && r.error) return {state: 'silent', word: 'does not answer host ' + p.host, since: r.since};
  return {state: 'alive', word: 'alive', since: (p.started || {})[h.name] || h.since};
}

// derive makes the model of a picture.
export function derive(p, rates) {
  rates.begin();
  const hosts = p.hosts.map((h) => ({...h, ...hostState(p, h), self: h.name === p.host, networks: [], rate: null, within: null,
    outside: null, outsideConnections: 0, containers: 0, report: p.reports[h.name]}));
  const byName = new Map(hosts.map((h) => [h.name, h]));
  const containers = containersOf(p, rates);
  for (const c of containers.values()) {
    const h = byName.get(c.host);
    if (!h) continue;
    let n = h.networks.find((n) => n.name === c.network);
    if (!n) h.networks.push(n = {name: c.network, containers: [], rate: null, blocks: []});
    n.containers.push(c);
    n.rate = sum(n.rate, c.rate);
    h.rate = sum(h.rate, c.rate);
    h.containers++;
  }
  for (const [network, blocks] of Object.entries(p.blocks)) {
    for (const [host, its] of Object.entries(blocks)) {
      const h = byName.get(host);
      if (!h) continue;
      let n = h.networks.find((n) => n.name === network);
      if (!n) h.networks.push(n = {name: network, containers: [], rate: null});
      n.blocks = its;
    }
  }
  for (const h of hosts) {
    h.networks.sort((a, b) => a.name < b.name ? -1 : 1);
    const t = h.report && !h.report.error && h.report.traffic;
    if (t && t.between) {
      h.received = rates.rate(h.name, t, 'in/' + h.name, t.between.received);
      h.sent = rates.rate(h.name, t, 'out/' + h.name, t.between.sent);
    }
  }
  const talks = talksOf(p, rates, containers);
  rates.end();
  return {self: p.host, cluster: p.cluster, hosts, networks: networksOf(p), talks, edges: edgesOf(talks, byName),
    containers: containers.size, troubles: troublesOf(p, hosts), uncounted: uncountedOf(hosts)};
}

// containersOf returns the containers by host, network and id.
function containersOf(p, rates) {
  const all = new Map();
  for (const c of p.containers) {
    all.set([c.host, c.network, c.id].join('/'), {...c, key: [c.host, c.network, c.id].join('/'), name: shortName(c), rate: null, addresses: c.addresses || []});
  }
  for (const [host, r] of Object.entries(p.reports)) {
    if (r.error || !r.traffic) continue;
    for (const l of r.traffic.links || []) {
      const c = all.get([host, l.network, l.id].join('/'));
      if (c) c.rate = rates.rate(host, r.traffic, 'link/' + c.key, l.received + l.sent);
    }
  }
  return all;
}

// endOf returns how an end of a talk is shown.
function endOf(e, containers) {
  if (!e.host) return {label: 'outside', kind: 'outside', host: ''};
  const c = e.id && containers.get([e.host, e.network, e.id].join('/'));
  if (c) return {label: c.name, kind: 'container', host: e.host, network: e.network, text: c.addresses.join(' ')};
  return {label: 'host ' + e.host, kind: 'host', host: e.host, network: e.network};
}

function talksOf(p, rates, containers) {
  const most = 2000; // the node leaves out the rest
  const all = p.talks.map((t) => {
    const traffic = {...p.reports[t.by].traffic}, ends = [t.from, t.to].map((e) => [e.host, e.network, e.id].join('/'));
    if (p.talks.length >= most) traffic.left = 1;
    const key = [...ends, t.protocol, t.port].join(' ');
    return {key, from: endOf(t.from, containers), to: endOf(t.to, containers), protocol: t.protocol, port: t.port,
      connections: t.connections, counted: t.counted, partly: t.counted < t.connections, network: t.from.network || t.to.network,
      rate: t.requests + t.answers > 0 || t.counted > 0 ? rates.rate(t.by, traffic, 'talk/' + key, t.requests + t.answers) : null};
  });
  return all.filter((t) => t.connections > 0 || t.rate > 0)
    .sort((a, b) => (b.rate || 0) - (a.rate || 0) || b.connections - a.connections || (a.key < b.key ? -1 : 1));
}

// edgesOf joins talks by their hosts. Those within a host or to outside are added to the hosts.
function edgesOf(talks, hosts) {
  const all = new Map();
  for (const t of talks) {
    const [a, b] = [t.from.host, t.to.host].sort();
    if (a === b && hosts.has(a)) hosts.get(a).within = sum(hosts.get(a).within, t.rate);
    const inside = hosts.get(a || b);
    if (!a && inside) {
      inside.outside = sum(inside.outside, t.rate);
      inside.outsideConnections += t.connections;
    }
    if (a === b || !hosts.has(a) || !hosts.has(b)) continue;
    let e = all.get(a + ' ' + b);
    if (!e) all.set(a + ' ' + b, e = {key: a + ' ' + b, a, b, rate: null, connections: 0, partly: false, networks: new Set()});
    e.rate = sum(e.rate, t.rate);
    e.connections += t.connections;
    e.partly ||= t.partly;
    e.networks.add(t.network);
  }
  return [...all.values()].sort((x, y) => (y.rate || 0) - (x.rate || 0) || y.connections - x.connections || (x.key < y.key ? -1 : 1));
}

function networksOf(p) {
  return p.networks.map((n) => {
    const on = Object.entries(n.endpoints || {});
    return {name: n.name, subnets: n.subnets || [], hosts: on.length, containers: on.reduce((s, [, k]) => s + k, 0),
      blocks: Object.values(p.blocks[n.name] || {}).reduce((s, b) => s + b.length, 0)};
  });
}

// troublesOf returns what is broken, the worst first.
function troublesOf(p, hosts) {
  const all = [];
  if (!p.registry.answers) {
    all.push({key: 'registry', bad: true, text: 'The registry does not answer host ' + p.host + '. Containers go on, but no host learns what changes on another.', since: p.registry.since});
  }
  for (const h of hosts) {
    const r = h.report;
    if (h.state === 'dead') {
      all.push({key: 'dead ' + h.name, bad: true, host: h.name, text: 'Host ' + h.name + ' is not alive. ' +
        (h.containers ? 'Nothing is known of its ' + count(h.containers, 'container') + '.' : 'It had no containers.'), since: h.since});
    } else if (h.state === 'silent') {
      all.push({key: 'silent ' + h.name, host: h.name, text: 'Host ' + h.name + (p.registry.answers ? ' is alive, but does' : ' does') + ' not answer host ' + p.host + ': ' + r.error + '.', since: r.since});
    } else if (r) {
      if (!h.self && !r.registry) all.push({key: 'registry ' + h.name, bad: true, host: h.name, text: 'The registry does not answer host ' + h.name + '.'});
      for (const q of r.problems || []) all.push({key: 'problem ' + h.name + ' ' + q.text, host: h.name, text: 'Host ' + h.name + ': ' + q.text, since: q.since});
    }
  }
  return all.sort((a, b) => (b.bad ? 1 : 0) - (a.bad ? 1 : 0));
}

// uncountedOf returns the hosts whose kernel does not count the bytes of connections.
const uncountedOf = (hosts) => hosts.filter((h) => h.report && !h.report.error && h.report.traffic && !h.report.traffic.counted).map((h) => h.name);
