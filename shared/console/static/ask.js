// What the page asks of workers, through the console's own server.

const OURS = { "Onefold-Console": "1" }; // which no page of another origin may send

/** What the JSON says, with whole numbers that JavaScript would round kept as they are written. */
export const parsed = (text) => JSON.parse(text, (_, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value);

/** The same JSON over several lines: each text and number as it is written, which JavaScript would not always keep. */
export function indented(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|\s+|\[\s*\]|\{\s*\}|[[\]{},:]/g, (part) => {
    if (part.trim() === "") return "";
    if (part === "{" || part === "[") depth += 1;
    if (part === "}" || part === "]") return (depth -= 1, line() + part);
    return part + (part === ":" ? " " : "{[,".includes(part) ? line() : "");
  });
}

/** {status, body} of GET; the target is a path with its query. Null if a later question has taken its place. */
export async function get(service, target, signal) {
  try {
    const answer = await fetch(`ask/${encodeURIComponent(service)}${target}`, { signal, headers: OURS });
    return { status: answer.status, body: parsed(await answer.text()) };
  } catch (failure) {
    if (failure.name === "AbortError") return null;
    return { status: 0, body: { detail: "the console does not answer" } };
  }
}

export const segment = (text) => encodeURIComponent(text);

/** As a word for a shell: ids are whatever strangers chose. */
export const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** As one types it; a token is named, never shown. */
export const curl = (url, withToken) => `curl ${withToken ? `-H "Authorization: Bearer $ONEFOLD_TOKEN" ` : ""}${quoted(url)}`;

/** What a service lists, by its OpenAPI document, which workers publish in dev: path, row and parameters of each. */
export async function listsOf(service) {
  const { status, body } = await get(service, "/openapi.json");
  const paths = status === 200 ? body.paths : {};
  const isList = (get) => get?.parameters?.some((each) => each.name === "cursor" && each.in === "query");
  return Object.keys(paths).filter((path) => !path.includes("{") && path !== "/dead-letters" && isList(paths[path].get)).map((path) => {
    const row = Object.keys(paths).find((each) => each.startsWith(`${path}/{`) && each.indexOf("}") === each.length - 1);
    return {
      path,
      key: row?.slice(path.length + 2, -1),
      history: Boolean(row && paths[`${row}/events`]),
      parameters: paths[path].get.parameters.filter((each) => each.in === "query").map((each) => each.name),
    };
  });
}

/** {status, body} of what is to be done with a dead letter. data: JSON of what a correction says, sent as written. */
export async function mend(what, data) {
  const body = JSON.stringify(what).slice(0, -1) + (data === undefined ? "}" : `,"data":${data}}`);
  const headers = { ...OURS, "Content-Type": "application/json" };
  try {
    const answer = await fetch("dead-letters", { method: "POST", headers, body });
    return { status: answer.status, body: await answer.json() };
  } catch {
    return { status: 0, body: { detail: "the console does not answer" } };
  }
}
