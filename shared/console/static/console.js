// The page: follows the stream while it is seen, remembers a little of what it saw, and draws it.
import { html, render, useState } from "./vendor/preact-htm-3.1.1.js";
import { get, signIn, streamed } from "./ask.js";
import { placeOf, StoryDialog, Tail } from "./events.js";
import { Flow } from "./flow.js";
import { Service } from "./grid.js";
import { Letters } from "./letters.js";
import { Command } from "./parts.js";
import { Tables } from "./tables.js";
import { Versions } from "./versions.js";
import { pace, plural, ranges, sum, waits } from "./text.js";

const TREND_S = 120, MOVED_S = 6, NEWS = 6, EVENTS = 500, LETTERS_S = 2;

const state = { picture: null, live: "connecting", memories: new Map(), news: [], events: [], seen: null, lost: 0, letters: [], lettersAt: 0 };

function remember(picture) {
  for (const service of picture.services) {
    const { name } = service.declared;
    const memory = state.memories.get(name) ?? { owners: new Map(), moved: new Map(), most: new Map(), lags: [] };
    state.memories.set(name, memory);
    if (service.problem) continue;
    if (service.places.every((each) => each.lag_records != null)) memory.lags.push([picture.at, sum(service.sources.map((each) => each.lag_records))]);
    while (memory.lags[0]?.[0] < picture.at - TREND_S) memory.lags.shift();
    const moves = new Map();
    for (const { partition, owner, restored, to_restore } of service.places) {
      const before = memory.owners.get(partition);
      if (before && owner && before !== owner) {
        memory.moved.set(partition, picture.at);
        memory.most.delete(partition);
        moves.set(`${before} ${owner}`, [...(moves.get(`${before} ${owner}`) ?? []), partition]);
      }
      if (owner) memory.owners.set(partition, owner);
      if (memory.moved.get(partition) < picture.at - MOVED_S) memory.moved.delete(partition);
      if (restored) memory.most.delete(partition);
      else if (to_restore) memory.most.set(partition, Math.max(to_restore, memory.most.get(partition) ?? 0));
    }
    for (const [pair, partitions] of moves) {
      const [from, to] = pair.split(" ").map((url) => nameOf(service, url));
      tell(picture.at, `${name}: partition ${ranges(partitions)} went from ${from} to ${to}`);
    }
  }
}

function rememberEvents({ services, newest }) {
  const names = services.map((each) => each.declared.name), seen = new Set(state.events.map(placeOf));
  const more = newest.events.filter((each) => !seen.has(placeOf(each)));
  if (newest.problem) return;
  state.lost += Math.max(0, newest.seen - (state.seen ?? newest.seen) - more.length);
  state.seen = newest.seen;
  if (!more.length) return;
  for (const each of more) each.service = names.find((name) => name === each.topic.split(".")[0]) ?? names[0];
  state.events = [...state.events, ...more].slice(-EVENTS);
}

const known = new Map();

function nameOf(service, url) {
  const instance = service.members.find((each) => each.url === url)?.instance ?? known.get(url);
  return instance ? `worker ${instance}` : url;
}

function tell(at, text) {
  state.news = [{ at, text }, ...state.news].slice(0, NEWS);
}

async function act(what, target = "workers") {
  const headers = { "Content-Type": "application/json", "Onefold-Console": "1" };
  const answer = await fetch(target, { method: "POST", headers, body: JSON.stringify(what) });
  if (!answer.ok) throw new Error(await answer.text());
}

const say = (doing, text) => doing.then(() => tell(Date.now() / 1000, text), (error) => tell(Date.now() / 1000, error.message));

const actions = {
  kill: (service, { url, instance }) => say(act({ worker: url }), `${service.declared.name}: worker ${instance} is killed`),
  add: ({ declared }) => say(act({ service: declared.name }), `${declared.name}: one more worker starts`),
};

/** Resolves with why it is refused, or an empty text. */
const run = (service, { verb, version, label }, reason = "") => act({ service, verb, version, reason }, "runs").then(
  () => (tell(Date.now() / 1000, `${service}: ${label}`), ""), ({ message }) => (tell(Date.now() / 1000, message), message));

/** Of a worker's own page: whoever sees it asks for them. */
async function askForLetters({ at, services: [{ declared }] }) {
  if (at < state.lettersAt + LETTERS_S) return;
  state.lettersAt = at;
  const found = await get(declared.name, "/dead-letters?limit=100");
  if (found?.status === 200) state.letters = found.body.items;
}

function show(picture) {
  state.picture = picture;
  if (picture.own) {
    askForLetters(picture);
    picture.services[0].letters = state.letters;
  }
  rememberEvents(picture);
  for (const { members } of picture.services) for (const each of members) if (each.instance) known.set(each.url, each.instance);
  remember(picture);
  draw("live");
}

let stream = null;

function follow() {
  stream?.abort();
  stream = state.seen = null; // the next one may come from another worker, which counts from its own first look
  if (document.hidden) return draw("paused");
  stream = streamed(show, (status) => {
    state.seen = null;
    draw({ 401: "locked", 403: "forbidden" }[status] ?? "lost");
  });
}

function draw(live) {
  state.live = live;
  render(html`<${Page} ...${state} />`, document.body);
}

const SAYS = { connecting: "connecting", live: "live", paused: "paused", lost: "no answer; trying again", locked: "a token is needed", forbidden: "this token may not see it" };

function Page({ picture, live, memories, news, events, lost }) {
  const [story, setStory] = useState(null);
  const openStory = (service, id) => setStory({ service, id });
  const services = picture?.services ?? [], findings = picture?.doctor?.findings ?? [];
  const waiting = waits(services);
  const handled = services.map((each) => each.handled_per_s).filter((each) => each != null);
  return html`
    <header class="top"><h1><img src="static/icon.svg" alt="" width="20" height="20" />Onefold</h1>
      ${picture && html`<p class="totals"><b>${plural(services.length, "service")}</b> <b>${plural(sum(services.map((each) => each.members.length)), "worker")}</b>
        <span><b>${handled.length ? pace(sum(handled)) : "–"}</b> handled</span> <span class=${waiting === "0" ? "" : "late"}><b>${waiting}</b> waiting</span>
        ${picture.own ? "" : html`<a href="#doctor" class=${findings.length ? "late" : ""}><b>${picture.doctor ? plural(findings.length, "finding") : "examining"}</b></a>`}</p>`}
      <p class="live ${live}" role="status">${SAYS[live]}</p></header>
    <main>${live === "locked" || live === "forbidden" ? html`<${SignIn} />` : picture ? html`
      <div class="system"><${Flow} services=${services} />
        <p class="legend"><i class="owner"></i>owner <i class="owner late"></i>owner, and so many records wait <i class="standby"></i>standby, and how far behind <i class="restoring"></i>restoring</p>
        <div class="services">${services.map((each) => html`<${Service} key=${each.declared.name} service=${each} memory=${memories.get(each.declared.name)} actions=${picture.acts && actions} />`)}</div>
        <${Tables} services=${services} withToken=${picture.with_token} news=${events} openStory=${openStory} />
        <${Tail} events=${events} lost=${lost} newest=${picture.newest} openStory=${openStory} /></div>
      <aside><${News} news=${news} />${picture.own ? "" : html`<${Doctor} doctor=${picture.doctor} />`}<${Letters} ...${{ services, operator: picture.operator, withToken: picture.with_token, openStory }} tell=${(text) => tell(Date.now() / 1000, text)} />
        <${Versions} ...${{ picture, nameOf, run }} /></aside>` : html`<p class="empty">Asking the workers…</p>`}
      ${story ? html`<${StoryDialog} ...${story} onClose=${() => setStory(null)} />` : ""}
    </main>`;
}

function SignIn() {
  const enter = (event) => {
    event.preventDefault();
    signIn(event.currentTarget.elements.token.value);
    draw("connecting");
    follow();
  };
  return html`<section class="card" aria-labelledby="sign-in"><h2 id="sign-in">Sign in</h2>
    <form class="mend" onSubmit=${enter}><label>Bearer token <input name="token" type="password" required autocomplete="off" /></label>
      <p class="hints">This page does what the token's bearer may: it needs the scope operations:read, and for rows the service's own. It is forgotten with the page.</p>
      <div class="buttons"><button type="submit">show the service</button></div></form></section>`;
}

function News({ news }) {
  return html`<section class="card news" aria-labelledby="news"><h2 id="news">Log</h2>
    <div role="log" aria-label="Take-overs, and what was done">${news.map((each) => html`<p key=${each.at + each.text}><time>${new Date(each.at * 1000).toLocaleTimeString("en-GB")}</time> ${each.text}</p>`)}</div>
    ${news.length ? "" : html`<p class="empty">No take-over since this page is open, and nothing done.</p>`}</section>`;
}

function Doctor({ doctor }) {
  const unseen = doctor?.unseen ?? [], findings = doctor?.findings ?? [];
  return html`<section class="card doctor" aria-labelledby="doctor"><h2 id="doctor">Findings <small>${doctor?.at ? `looked at ${new Date(doctor.at * 1000).toLocaleTimeString("en-GB")}` : ""}</small></h2>
    ${!doctor ? html`<p class="empty">The doctor is looking…</p>` : ""}
    ${doctor?.problem ? html`<p class="problem">The doctor can't look: ${doctor.problem}</p>` : ""}
    ${doctor && !doctor.problem && !findings.length && !unseen.length ? html`<p class="fine">Nothing is wrong.</p>` : ""}
    ${findings.map((each) => html`<article key=${each.code + each.what} class="finding ${each.severity}">
      <h3><span class="severity">${each.severity}</span> ${each.what}</h3><p>${each.evidence}</p><p class="why">${each.why}</p><${Command} text=${each.cure} /></article>`)}
    ${unseen.map((each) => html`<p class="problem">Not seen: ${each}</p>`)}</section>`;
}

document.addEventListener("visibilitychange", follow);
follow();
