/** What the page computes without a browser. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { blockage, edgeKey, level, pressures } from "../src/blockage.js";
import { difference } from "../src/difference.js";
import { EventReader } from "../src/event-reader.js";
import { matches, ordered } from "../src/fleet-order.js";
import { ago, count, duration, rate } from "../src/format.js";
import { readable } from "../src/position.js";
import { counted, quantile, together } from "../src/quantile.js";
import { href, parse } from "../src/route.js";
import { Series } from "../src/series.js";

test("events come out whole however the text was cut", () => {
  const text = 'event: fleet\ndata: {"at": 1}\n\n: a comment\n\ndata: two\ndata: lines\r\n\r\nevent: cut';
  for (let size = 1; size <= text.length; size++) {
    const reader = new EventReader();
    const events = [];
    for (let i = 0; i < text.length; i += size) events.push(...reader.read(text.slice(i, i + size)));
    assert.deepEqual(events, [["fleet", '{"at": 1}'], ["message", "two\nlines"]]);
  }
});

test("numbers are short, and exact while they are small", () => {
  assert.deepEqual([0, 7, 9999, 10_000, 12_345, 1_234_567, 2e9].map(count), ["0", "7", "9,999", "10.0k", "12.3k", "1.23M", "2.00G"]);
  assert.deepEqual([null, 0, 0.01, 2, 2.54, 12.4, 12_345].map(rate), ["–", "0", "<0.1", "2", "2.5", "12", "12.3k"]);
  assert.deepEqual([0, 0.0005, 0.0123, 1.25, 59, 61, 3600, 90_000].map(duration), ["0 s", "500 µs", "12 ms", "1.3 s", "59 s", "1 min 1 s", "1 h", "1 d 1 h"]);
  assert.deepEqual([0, 30, 90, 7300, 200_000].map((seconds) => ago(1000, 1000 + seconds)), ["just now", "30 s ago", "1 min ago", "2 h ago", "2 d ago"]);
});

test("a rate is the growth of a counter, and unknown over a restart", () => {
  const series = new Series(60);
  for (let at = 0; at <= 10; at++) series.push({ at, read: at * 5 });
  assert.equal(series.rate("read"), 5);
  assert.deepEqual(series.rates("read", 60, 2), [[3, 5, 7, 9], [5, 5, 5, 5]]);
  series.push({ at: 11, read: 0 });
  assert.equal(series.rate("read"), null);
});

test("a series forgets what is too old and leaves out what comes late", () => {
  const series = new Series(10);
  for (let at = 0; at <= 100; at++) series.push({ at, read: at });
  series.push({ at: 50, read: 1 });
  assert.ok(series.length <= 41, `${series.length} samples`);
  assert.equal(series.last.at, 100);
});

test("quantiles are between the bounds of their bucket", () => {
  const bounds = [1, 2, 4];
  assert.equal(quantile(0.5, bounds, [0, 10, 0, 0]), 1.5);
  assert.equal(quantile(0.99, bounds, [98, 0, 0, 2]), 4);
  assert.equal(quantile(0.5, bounds, [0, 0, 0, 0]), null);
  assert.deepEqual(counted({ counts: [1, 2] }, { counts: [4, 2] }), [3, 0]);
  assert.deepEqual(counted({ counts: [5, 2] }, { counts: [1, 0] }), [1, 0]);
  assert.deepEqual(together([[1, 2], [3, 4]]), [4, 6]);
});

test("a difference names every field that changed, and how", () => {
  const changes = difference({ a: 1, b: { c: [1, 2] }, d: {} }, { a: 1, b: { c: [1, 3] }, e: null });
  assert.deepEqual(changes.map(({ path, change }) => [path, change]), [
    ["a", "same"],
    ["b.c[0]", "same"],
    ["b.c[1]", "changed"],
    ["d", "removed"],
    ["e", "added"],
  ]);
});

const node = (id, kind, inputs, outputs, rest) => ({ id, kind, inputs, outputs, queued: 0, queue_size: 2, waiting_on: null, ...rest });

test("an edge is pressed when a source before it is held, by what is full", () => {
  const nodes = [
    node("in", "source", [], ["slow", "quick"], { waiting_on: "channel" }),
    node("slow", "destination", ["in"], [], { queued: 2, waiting_on: "write" }),
    node("quick", "destination", ["in"], []),
  ];
  const found = pressures(nodes, [["in", "slow"], ["in", "quick"]]);
  assert.deepEqual([...found], [[edgeKey("in", "slow"), 1], [edgeKey("in", "quick"), 0]]);
  assert.deepEqual([0, 0.3, 0.9].map(level), ["free", "tight", "blocked"]);
});

test("a full queue behind a source that waits for data is no pressure", () => {
  const nodes = [node("in", "source", [], ["out"], { waiting_on: "source" }), node("out", "destination", ["in"], [], { queued: 2 })];
  assert.equal(level([...pressures(nodes, [["in", "out"]]).values()][0]), "free");
});

test("what blocks a node is said in words, also when nobody foresaw it", () => {
  assert.equal(blockage("window").mood, "held");
  assert.deepEqual(blockage("back-off after: boom"), { text: "back-off after: boom", mood: "held" });
  assert.deepEqual(blockage("something new"), { text: "something new", mood: "busy" });
});

test("addresses lead to the page that they were made for, whatever is in an id", () => {
  assert.deepEqual(parse(href(["pipelines", "a/b c?#", "nodes", "x:y"])), {
    page: "pipeline", id: "a/b c?#", tab: "overview", node: "x:y", query: {},
  });
  assert.deepEqual(parse(href(["dead-letters"], { cause: "a & b", text: "" })), { page: "letters", query: { cause: "a & b" } });
  assert.equal(parse("#/nowhere").page, "lost");
  assert.equal(parse("#/pipelines/%zz").id, "%zz");
});

test("pipelines in trouble come first, then by name as people count", () => {
  const row = (id, status) => ({ pipeline: { id, status, progress: null, since: 0 }, rate: null, held: false });
  const rows = [row("p10", "running"), row("p9", "running"), row("z", "degraded"), row("a", "stopped")];
  assert.deepEqual(ordered(rows, "attention").map(({ pipeline }) => pipeline.id), ["z", "p9", "p10", "a"]);
});

test("a filter finds every word anywhere", () => {
  const pipeline = { id: "orders", description: "Into the lake", status: "degraded", error: { message: "disk full", code: "x" }, progress: null };
  assert.ok(matches(pipeline, "LAKE full"));
  assert.ok(!matches(pipeline, "lake empty"));
});

test("positions are text where they are text", () => {
  assert.equal(readable(btoa("file:120")), "file:120");
  assert.equal(readable(btoa("\x00\xff")), "00 ff");
});
