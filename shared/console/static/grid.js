// Workers × partitions of one service: who owns what, who stands by, how far behind, and what moved.
import { html } from "./vendor/preact-htm-3.1.1.js";
import { address, brief, count, pace, plural, ranges, span, waits } from "./text.js";

const DENSE = 24; // partitions from which a cell has no room for a figure

function Cell({ place, url, memory, dense }) {
  const standby = place.standbys.find((each) => each.url === url);
  if (place.owner === url) {
    const moved = memory.moved.get(place.partition) ? "moved" : "";
    if (place.restored === false) {
      const most = memory.most.get(place.partition) || place.to_restore || 1;
      const done = Math.round(100 * (1 - place.to_restore / most));
      const left = `${plural(place.to_restore, "record")} to restore${place.left_s == null ? "" : `, ${span(place.left_s)}`}`;
      return html`<td class="owner restoring ${moved}" title="partition ${place.partition}: ${left}"><meter class="bar" max="100" value=${done} aria-label="restored"></meter><span class=${dense ? "hidden" : ""}>${done} %</span></td>`;
    }
    const late = place.lag_records === 0 ? "" : "late";
    const said = `owner${place.restored == null ? ", not answering" : ""}${late ? `, ${plural(place.lag_records, "record")} wait, ${span(place.lag_seconds)}` : ""}`;
    return html`<td class="owner ${late} ${moved} ${place.restored == null ? "unknown" : ""}" title="partition ${place.partition}: ${said}"><span class="hidden">owner </span><span class=${dense ? "hidden" : ""}>${late ? brief(place.lag_records) : ""}</span></td>`;
  }
  if (standby) {
    const said = `standby, ${plural(standby.lag_records, "record")} behind${standby.lag_records ? `, ${span(standby.lag_seconds)}` : ""}`;
    return html`<td class="standby" title="partition ${place.partition}: ${said}"><span class="hidden">standby </span><span class=${dense ? "hidden" : ""}>${standby.lag_records ? brief(standby.lag_records) : ""}</span></td>`;
  }
  return html`<td></td>`;
}

const byName = (a, b) => (a.instance ?? a.url).localeCompare(b.instance ?? b.url, "en", { numeric: true });

const stateOf = (member) => (!member.reachable ? "silent" : !member.ready ? "not ready" : member.idle ? "idle" : "ready");

function Row({ member, service, memory, dense, actions }) {
  const state = stateOf(member), troubles = member.troubles ?? [];
  const owned = service.places.filter((each) => each.owner === member.url).map((each) => each.partition);
  return html`<tr class=${state === "silent" ? "wrong" : ""} data-worker=${member.url}>
    <th scope="row"><span class="worker">${member.instance ?? "?"}</span> <a class="where" href="${member.url}/docs">${address(member.url)}</a>
      <span class="state ${state.replace(" ", "-")}">${state}</span>
      ${troubles.map((each) => html`<span class="trouble">${each.topic ? `${each.topic}/${each.partition} ` : ""}stands for ${span(each.for_s)}: ${each.reason}</span>`)}
      <span class="hidden">owns ${ranges(owned) || "nothing"}</span></th>
    ${service.places.map((place) => html`<${Cell} key=${place.partition} ...${{ place, url: member.url, memory, dense }} />`)}
    ${actions && html`<td class="act"><button type="button" onClick=${() => actions.kill(service, member)}>kill<span class="hidden"> ${service.declared.name} ${member.instance}</span></button></td>`}
  </tr>`;
}

function Trend({ points }) {
  const most = Math.max(1, ...points.map(([, n]) => n)), last = points[points.length - 1]?.[0] ?? 0;
  const line = points.map(([at, n]) => `${(120 - (last - at)).toFixed(1)},${(17 - (15 * n) / most).toFixed(1)}`).join(" ");
  return html`<svg class="trend" viewBox="0 0 120 18" aria-hidden="true"><polyline points=${line} /></svg>`;
}

/** By how many records a second more or fewer wait, of the last ten seconds. */
function rise(points) {
  const last = points[points.length - 1], first = points.find(([at]) => at >= last[0] - 10);
  return last[0] > first[0] ? (last[1] - first[1]) / (last[0] - first[0]) : 0;
}

export function Service({ service, memory, actions }) {
  const { declared, places, members, sources } = service;
  const dense = places.length > DENSE;
  const waiting = waits([service]), trend = memory.lags.length ? rise(memory.lags) : 0;
  const longest = Math.max(...sources.map((each) => each.lag_seconds ?? 0), 0);
  const lost = places.filter((each) => each.owner == null).map((each) => each.partition);
  const id = `service-${declared.name}`;
  return html`<section class="card service" aria-labelledby=${id}>
    <header><h2 id=${id}>${declared.name} <small>version ${declared.version}${declared.group === declared.name ? "" : `, group ${declared.group}`}</small></h2>
      <dl class="figures">
        <div><dt>handled</dt><dd data-figure="handled">${pace(service.handled_per_s)}</dd></div>
        <div class=${waiting === "0" ? "" : "late"}><dt>waiting</dt><dd><span data-figure="waiting">${waiting}</span> ${waiting !== "0" && longest ? html`<small>${span(longest)}</small>` : ""}
          <${Trend} points=${memory.lags} />${Math.abs(trend) >= 0.5 ? html`<small>${trend > 0 ? "▲" : "▼"} ${pace(Math.abs(trend))}</small>` : ""}</dd></div>
        <div class=${service.parked ? "late" : ""}><dt>parked</dt><dd data-figure="parked">${count(service.parked)}</dd></div>
      </dl>
      ${actions && html`<button type="button" onClick=${() => actions.add(service)}>add a worker<span class="hidden"> of ${declared.name}</span></button>`}</header>
    ${service.problem ? html`<p class="problem">Nobody answers for ${declared.name}: ${service.problem}</p>` : html`
      ${lost.length ? html`<p class="problem">Nobody owns partition ${ranges(lost)}</p>` : ""}
      <div class="scroll" tabindex="0" role="group" aria-label="Partitions of ${declared.name}"><table class="grid ${dense ? "dense" : ""}">
        <thead><tr><th scope="col">worker</th>${places.map((each) => html`<th scope="col" class=${each.owner == null ? "lost" : ""}>${dense && each.partition % 10 ? html`<span class="hidden">${each.partition}</span>` : each.partition}</th>`)}${actions && html`<th scope="col"><span class="hidden">actions</span></th>`}</tr></thead>
        <tbody>${[...members].sort(byName).map((member) => html`<${Row} key=${member.url} ...${{ member, service, memory, dense, actions }} />`)}</tbody>
      </table></div>`}
  </section>`;
}
