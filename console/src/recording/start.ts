/** Loads the recording of the demo and answers every request from it. Only the demo build contains this. */

import { RecordedApi, type Recording, toResponse } from "./answers";

const RECORDING_FILE = "recording.json";
const STORAGE_PREFIX = "cynode.";
const RECORDING_KEY = "cynode.recording";

/** Address of the installation in commands that pages show. */
export const RECORDED_ORIGIN = "http://127.0.0.1:12080";

let api: RecordedApi | null = null;
let recordedAt = "";

/** Counts refusals, so that the bar can say so again. */
let refusals = 0;
const readers = new Set<() => void>();

export function subscribeToRefusals(reader: () => void): () => void {
  readers.add(reader);
  return () => readers.delete(reader);
}

export function readRefusals(): number {
  return refusals;
}

export function readRecordedAt(): string {
  return recordedAt;
}

function noteRefusal(): void {
  refusals += 1;
  for (const reader of readers) reader();
}

/** Loads the recording, which is beside the page, and sets the clock to the time at which it was made. */
export async function startRecording(): Promise<void> {
  const response = await fetch(`${import.meta.env.BASE_URL}${RECORDING_FILE}`);
  if (!response.ok) throw new Error(`The recording could not be loaded: status ${response.status}.`);
  const recording = (await response.json()) as Recording;
  api = new RecordedApi(recording);
  recordedAt = recording.recorded_at;
  const readClock = Date.now.bind(Date);
  const offset = Date.parse(recordedAt) - readClock();
  Date.now = () => readClock() + offset;
  forgetOtherRecordings();
  openNewestTask(api);
}

/** The inbox of a run that has ended is empty: the demo begins with what was done. */
function openNewestTask(recorded: RecordedApi): void {
  const { body } = recorded.answer({ method: "GET", path: "/v1/tasks", body: "" });
  const newest = (body as { items?: { id: string }[] }).items?.[0];
  if (window.location.hash === "" && newest) window.history.replaceState(null, "", `#/tasks/${newest.id}`);
}

/** What a browser keeps of another recording, such as heads of its audit log, contradicts this one. */
function forgetOtherRecordings(): void {
  try {
    if (localStorage.getItem(RECORDING_KEY) === recordedAt) return;
    for (const key of Object.keys(localStorage)) if (key.startsWith(STORAGE_PREFIX)) localStorage.removeItem(key);
    localStorage.setItem(RECORDING_KEY, recordedAt);
  } catch {
    // A browser may store nothing.
  }
}

/** Answers like `fetch`. */
export async function answerRequest(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const request = new Request(input, init);
  request.signal.throwIfAborted();
  if (!api) throw new TypeError("The recording is not loaded.");
  const { pathname, search } = new URL(request.url);
  if (pathname.endsWith("/events/stream")) {
    return new Response("event: job.ended\ndata: {}\n\n", { headers: { "content-type": "text/event-stream" } });
  }
  const answer = api.answer({ method: request.method, path: pathname + search, body: await request.text() });
  if (answer.isRefused) noteRefusal();
  return toResponse(answer);
}
