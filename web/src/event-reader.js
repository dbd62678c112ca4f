/** EventReader: server-sent events out of pieces of text, however they were cut. */

export class EventReader {
  #rest = "";
  #name = "message";
  #data = [];

  /** The events that this piece completes, as [name, data]. */
  read(piece) {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop();
    return lines.flatMap((line) => this.#line(line.endsWith("\r") ? line.slice(0, -1) : line));
  }

  #line(line) {
    if (line === "") return this.#end();
    const [, field, value] = /^([^:]*):? ?([\s\S]*)$/.exec(line);
    if (field === "event") this.#name = value;
    if (field === "data") this.#data.push(value);
    return [];
  }

  #end() {
    const event = [this.#name, this.#data.join("\n")];
    const any = this.#data.length > 0;
    this.#name = "message";
    this.#data = [];
    return any ? [event] : [];
  }
}
