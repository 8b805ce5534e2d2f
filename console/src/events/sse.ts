/** Parser of server-sent events. EventSource neither names unknown kinds nor shows why a stream was refused. */

export interface ServerSentEvent {
  id: string | null;
  kind: string;
  data: string;
}

/** Takes text as it arrives and returns the events that are whole. */
export class EventParser {
  private rest = "";

  push(text: string): ServerSentEvent[] {
    this.rest += text;
    const events: ServerSentEvent[] = [];
    for (;;) {
      const end = /\r?\n\r?\n/.exec(this.rest);
      if (!end) return events;
      const event = parseBlock(this.rest.slice(0, end.index));
      this.rest = this.rest.slice(end.index + end[0].length);
      if (event) events.push(event);
    }
  }
}

function parseBlock(block: string): ServerSentEvent | null {
  let id: string | null = null;
  let kind = "message";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "id") id = value;
    else if (field === "event") kind = value;
    else if (field === "data") data.push(value);
  }
  return data.length === 0 ? null : { id, kind, data: data.join("\n") };
}
