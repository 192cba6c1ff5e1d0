// Texts of figures and times.

// rate returns bytes per second as bits per second with three digits; null: it is not known.
export function rate(bytes) {
  if (bytes === null || bytes === undefined) return '';
  let bits = bytes * 8;
  if (bits < 1) return '0 bit/s';
  for (const unit of ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s']) {
    if (bits < 999.5 || unit === 'Gbit/s') {
      const digits = bits < 9.995 && unit !== 'bit/s' ? 2 : bits < 99.95 && unit !== 'bit/s' ? 1 : 0;
      return bits.toFixed(digits) + ' ' + unit;
    }
    bits /= 1000;
  }
  return '';
}

// count returns a number and what it counts.
export const count = (n, one, many = one + 's') => n.toLocaleString('en') + ' ' + (n === 1 ? one : many);

// duration returns milliseconds in words.
export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 100) return s + ' s';
  if (s < 100 * 60) return Math.round(s / 60) + ' min';
  if (s < 48 * 3600) return Math.round(s / 3600) + ' h';
  return Math.round(s / 86400) + ' days';
}

// clock returns the time of day, and the date unless it is today's.
export function clock(time, now) {
  const t = new Date(time), two = (n) => String(n).padStart(2, '0');
  const day = t.toDateString() === new Date(now).toDateString() ? '' :
    t.getFullYear() + '-' + two(t.getMonth() + 1) + '-' + two(t.getDate()) + ' ';
  return day + two(t.getHours()) + ':' + two(t.getMinutes()) + ':' + two(t.getSeconds());
}

// since returns since when and how long something is so; '' if that is not known.
export const since = (time, now) => time ? 'since ' + clock(time, now) + ' (' + duration(now - Date.parse(time)) + ')' : '';
