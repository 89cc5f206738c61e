// Figures and names as people read them.

const whole = new Intl.NumberFormat("en");
const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

export const count = (n) => (n == null ? "?" : whole.format(Math.round(n)));

export function brief(n) {
  if (n == null) return "?";
  const [size, unit] = UNITS.find(([size]) => n >= size) ?? [1, ""];
  return unit ? `${(n / size).toFixed(n < 10 * size ? 1 : 0)}${unit}` : String(Math.round(n));
}

export function pace(n) {
  if (n == null) return "–";
  return `${n > 0 && n < 10 ? n.toFixed(1) : count(n)}/s`;
}

export function span(s) {
  if (s == null) return "?";
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

export const plural = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

export const address = (url) => url.replace(/^https?:\/\//, "");

export const sum = (some) => some.reduce((total, each) => total + each, 0);

/** Null where one of them is not known. */
export const total = (some) => (some.includes(null) ? null : sum(some));

/** What waits of services, with "+?" where some owner does not tell of its partition. */
export function waits(services) {
  const known = sum(services.flatMap((each) => each.sources.map((source) => source.lag_records)));
  return count(known) + (services.some((each) => each.problem || each.places.some((place) => place.lag_records == null)) ? "+?" : "");
}

/** 0–3, 5 for [0, 1, 2, 3, 5]. */
export function ranges(numbers) {
  const found = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ");
}

const two = (n, digits = 2) => String(n).padStart(digits, "0");

/** An instant, by this machine's clock, to the second; of another day with its date. */
export function moment(at) {
  const when = new Date(at), time = when.toLocaleTimeString("en-GB");
  const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return when.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
}

/** How long something took, in ms. */
export function took(ms) {
  if (ms < 10_000) return `${count(ms)} ms`;
  return ms < 600_000 ? `${(ms / 1000).toFixed(1)} s` : `${count(ms / 60_000)} min`;
}
