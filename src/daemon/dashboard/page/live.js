// The stream of events: one per page, taken up again where it was left.
//
//   connecting ─▶ live ◀──▶ lost (since …)        a second life of the daemon is told apart by its incarnation
//
// Not an EventSource: that cannot send a token, and does not say why it failed.

const SILENCE = 6_000; // A sample comes every second; without one for so long the connection is dead.
const LONGEST_WAIT = 3_000;
const MOST_EVENTS = 200; // In a second: more than a person reads; the daemon says how many it left out.

class Live {
  constructor() {
    this.state = "connecting";
    this.since = Date.now();
    this.why = null;
    this.last = null;
    this.incarnation = null;
    this.hearers = new Map();
  }

  on(type, hear) {
    this.hearers.set(type, [...(this.hearers.get(type) ?? []), hear]);
  }

  tell(type, data) {
    for (const hear of this.hearers.get(type) ?? []) hear(data);
  }

  async run() {
    for (let wait = 200; ; wait = Math.min(wait * 2, LONGEST_WAIT)) {
      try {
        await this.follow(() => (wait = 100));
        this.become("lost", "the daemon ended the stream of events");
      } catch (error) {
        this.become("lost", error instanceof Problem ? error.message : "the daemon does not answer");
      }
      await sleep(wait * (0.75 + Math.random() / 2));
    }
  }

  become(state, why = null) {
    this.why = why;
    if (this.state === state) return;
    this.state = state;
    this.since = Date.now();
    this.tell("state", state);
  }

  /** Reads one connection to its end. */
  async follow(heard) {
    let stop = new AbortController();
    let timer = 0;
    const patience = () => {
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE);
    };
    try {
      const headers = { accept: "text/event-stream", ...(this.last ? { "last-event-id": this.last } : {}) };
      const answer = await request(`v1/events?most_per_second=${MOST_EVENTS}`, {
        headers,
        signal: () => {
          stop = new AbortController();
          patience();
          return stop.signal;
        },
      });
      if (!answer.ok) throw await problemOf(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        patience();
        this.become("live");
        heard();
        const lines = (rest + value).split(/\r\n|\n/);
        rest = lines.pop();
        for (const line of lines) this.line(line);
      }
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }

  /** One line of the stream, as the standard of server-sent events has it. */
  line(line) {
    const event = (this.event ??= { type: "message", data: [], id: null });
    if (line === "") {
      this.event = null;
      if (event.data.length > 0) this.take(event);
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // A comment: the connection is alive.
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event.type = value;
    else if (field === "data") event.data.push(value);
    else if (field === "id" && !value.includes("\0")) event.id = value;
  }

  take({ type, data, id }) {
    if (id) {
      this.last = id;
      this.lives(id.slice(0, id.lastIndexOf("-")));
    }
    let said;
    try {
      said = JSON.parse(data.join("\n"));
    } catch {
      return; // Not for us: an event of a later version.
    }
    this.tell(type, said);
  }

  /** The daemon has this incarnation. Another one than before: it was started anew. */
  lives(incarnation) {
    incarnation = String(incarnation);
    if (incarnation === "" || incarnation === this.incarnation) return;
    const before = this.incarnation;
    this.incarnation = incarnation;
    if (before !== null) this.tell("restart", incarnation);
  }
}
