// Tables: a search that is the HTTP query, its rows, and one entity's row beside its events, now and in its past.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm-3.1.1.js";
import { curl, get, listsOf, segment } from "./ask.js";
import { Command, Fields, Value, written } from "./parts.js";
import { count, moment, plural } from "./text.js";

const PAGE = 50;
const FIRST = "limit=20";

export function Tables({ services, withToken, news, openStory }) {
  const [name, setName] = useState(services[0].declared.name);
  const [lists, setLists] = useState([]), [target, setTarget] = useState(""), [found, setFound] = useState(null), [entity, setEntity] = useState(null);
  const asked = useRef(0);
  useEffect(() => {
    let gone = false;
    listsOf(name).then((some) => {
      if (gone) return;
      setLists(some);
      setTarget((typed) => typed || (some.length ? `${some[0].path}?${FIRST}` : "/"));
    });
    return () => (gone = true);
  }, [name]);
  const service = services.find((each) => each.declared.name === name);
  const listOf = (wanted) => lists.find((each) => each.path === wanted.split("?")[0]), list = listOf(target);
  const search = async (wanted, before = []) => {
    const turn = (asked.current += 1);
    const answer = await get(name, wanted);
    if (answer && turn === asked.current) setFound({ ...answer, target: wanted, items: [...before, ...(answer.body.items ?? [])] });
  };
  const submit = (event) => {
    event.preventDefault();
    setEntity(null);
    search(target);
  };
  const change = (other) => {
    asked.current += 1; // what was asked before is of another table
    setName(other);
    setTarget("");
    setFound(null);
    setEntity(null);
  };
  const choose = (each) => {
    asked.current += 1;
    setTarget(`${each.path}?${FIRST}`);
    setEntity(null);
    setFound(null);
  };
  return html`<section class="card tables" aria-labelledby="tables"><h2 id="tables">Tables <small>a search is the request that it makes</small></h2>
    <form class="search" onSubmit=${submit}>
      <label><span class="hidden">service</span><select onChange=${({ currentTarget }) => change(currentTarget.value)}>
        ${services.map(({ declared }) => html`<option key=${declared.name} value=${declared.name} selected=${declared.name === name}>${declared.name}</option>`)}</select></label>
      <label class="wide"><span class="hidden">path and query of GET</span><input name="target" value=${target} spellcheck=${false} autocapitalize="off" autocomplete="off" onInput=${({ currentTarget }) => setTarget(currentTarget.value)} /></label>
      <button type="submit">search</button></form>
    <p class="hints">${lists.map((each) => html`<button key=${each.path} type="button" aria-pressed=${each === list} onClick=${() => choose(each)}>${each.path.slice(1)}</button>`)}
      ${list ? html`<span>may have ${list.parameters.join(", ")}</span>` : ""}</p>
    ${service.url && target.startsWith("/") ? html`<${Command} text=${curl(service.url + target, withToken)} />` : ""}
    ${found ? html`<${Found} found=${found} list=${listOf(found.target)} onMore=${() => search(next(found), found.items)} onOpen=${setEntity} />` : ""}
    ${entity ? html`<${Entity} key=${`${name} ${entity.path}`} service=${name} url=${service.url} history=${listOf(entity.path.slice(0, entity.path.lastIndexOf("/")))?.history} news=${news.filter((each) => each.service === name && each.key === entity.id)} ...${{ ...entity, withToken, openStory }} />` : ""}
  </section>`;
}

function next({ target, body }) {
  const path = target.split("?", 1)[0], parameters = new URLSearchParams(target.slice(path.length));
  parameters.set("cursor", body.cursor);
  return `${path}?${parameters}`;
}

function Found({ found, list, onMore, onOpen }) {
  const { status, body, items } = found;
  if (status !== 200) return html`<p class="problem" role="alert">${status || ""} ${body.detail ?? "no answer"}</p>`;
  if (!Array.isArray(body.items)) return html`<pre tabindex="0">${JSON.stringify(body, null, 2)}</pre>`;
  const columns = [...new Set(items.flatMap(Object.keys))];
  const key = list?.key && columns.includes(list.key) ? list.key : columns[0];
  const missing = body.partitions?.filter((each) => each.status !== "fresh") ?? [];
  return html`<p role="status">${plural(items.length, "row")}${body.cursor ? ", and more" : ""}${missing.map((each) => html` <span class="problem">partition ${each.partition} is ${each.status}</span>`)}</p>
    ${items.length ? html`<div class="scroll" tabindex="0" role="group" aria-label="Rows"><table class="plain rows">
      <thead><tr>${columns.map((each) => html`<th key=${each} scope="col">${each}</th>`)}</tr></thead>
      <tbody>${items.map((item) => html`<tr key=${written(item[key])} data-key=${written(item[key])}>${columns.map((each) => each === key
        ? html`<th scope="row"><button type="button" class="link" onClick=${() => onOpen({ id: written(item[key]), path: `${list?.path ?? found.target.split("?")[0]}/${segment(written(item[key]))}` })}>${written(item[key])}</button></th>`
        : html`<td><${Value} of=${item[each]} /></td>`)}</tr>`)}</tbody></table></div>` : ""}
    ${body.cursor ? html`<button type="button" onClick=${onMore}>more</button>` : ""}`;
}

/** news: its newest events, whose arrival means that there is more to show. */
function Entity({ service, url, path, history, news, withToken, openStory }) {
  const [now, setNow] = useState(null), [at, setAt] = useState(null), [past, setPast] = useState(null), [before, setBefore] = useState(null);
  const told = news.length ? news[news.length - 1].offset : 0;
  useEffect(() => {
    const stop = new AbortController();
    get(service, path, stop.signal).then((answer) => answer && setNow(answer));
    return () => stop.abort();
  }, [told]);
  useEffect(() => {
    if (at == null) return;
    const stop = new AbortController();
    const as = (sequence) => (sequence < 1 ? Promise.resolve({ status: 200, body: {} }) : get(service, `${path}?as_of=${sequence}`, stop.signal));
    const rests = setTimeout(() => Promise.all([as(at), as(at - 1)]).then(([one, other]) => one && other && (setPast(one), setBefore(other))), 150);
    return () => (clearTimeout(rests), stop.abort());
  }, [at]);
  if (!now) return html`<p class="empty">Asking for ${path}…</p>`;
  const last = now.body.sequence ?? 0, place = at ?? last, shown = at == null ? now : past ?? now;
  const go = (sequence) => setAt(sequence >= last ? null : Math.max(1, sequence));
  const target = at == null ? path : `${path}?as_of=${at}`;
  return html`<div class="entity" data-path=${path}>
    <h3>${path} <small>${at == null ? "now" : `after event ${at}`}</small></h3>
    ${history && last > 0 ? html`<${Slider} ...${{ service, path, place, last, go }} />` : html`<p class="empty">${last ? "Its past can't be asked for here." : ""}</p>`}
    ${url ? html`<${Command} text=${curl(url + target, withToken)} />` : ""}
    <div class="beside">
      <div class="row" aria-live="polite">${shown.status === 200 ? html`<${Fields} of=${shown.body} changed=${at != null && before?.status === 200 ? before.body : null} />` : html`<p class="problem">${shown.status} ${shown.body.detail}</p>`}</div>
      ${history && last > 0 ? html`<${Events} ...${{ service, path, place, last, go, openStory }} />` : ""}
    </div></div>`;
}

function Slider({ service, path, place, last, go }) {
  const [problem, setProblem] = useState("");
  const atTime = async ({ currentTarget }) => {
    if (!currentTarget.value) return;
    const answer = await get(service, `${path}?as_of=${new Date(currentTarget.value).toISOString()}`);
    setProblem(answer.status === 200 ? "" : answer.body.detail);
    if (answer.status === 200) go(answer.body.sequence);
  };
  return html`<div class="slider"><label>after event <input type="range" min="1" max=${last} value=${place} onInput=${({ currentTarget }) => go(Number(currentTarget.value))} /> <output>${count(place)} of ${count(last)}</output></label>
    <label>at <input type="datetime-local" step="1" onChange=${atTime} /></label>${problem ? html`<span class="problem" role="alert">${problem}</span>` : ""}</div>`;
}

function Events({ service, path, place, last, go, openStory }) {
  const [found, setFound] = useState(null);
  const first = PAGE * Math.floor((place - 1) / PAGE), whole = Math.min(last, first + PAGE);
  useEffect(() => {
    const stop = new AbortController();
    get(service, `${path}/events?cursor=${first}&limit=${PAGE}`, stop.signal).then((answer) => answer && setFound(answer));
    return () => stop.abort();
  }, [first, whole]);
  if (!found) return html`<p class="empty">Asking for its events…</p>`;
  if (found.status !== 200) return html`<p class="problem">${found.status} ${found.body.detail}</p>`;
  return html`<ol class="events" start=${first + 1}>${found.body.items.map((each) => html`<li key=${each.sequence} class=${each.sequence > place ? "later" : ""} aria-current=${each.sequence === place ? "step" : null}>
      <button type="button" class="link" onClick=${() => go(each.sequence)}>${each.sequence} ${each.type}</button> <time>${moment(each.occurred_at)}</time>
      <button type="button" onClick=${() => openStory(service, each.event_id)}>story<span class="hidden"> of event ${each.sequence}</span></button>
      <div class="data"><${Value} of=${each.data} /></div></li>`)}</ol>`;
}
