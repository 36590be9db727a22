// Ids of a tag from leased ranges: most cost no request. Node 18 or newer, no packages. Ids are BigInts, since
// numbers lose digits above 2^53.
//
//     node range_cache.mjs orders 5 http://127.0.0.1:8080    # a token, if need be, in LEAF_TOKEN
import { existsSync, realpathSync } from "node:fs";
import { pathToFileURL } from "node:url";

/** Hands out ids; leases the next range when half of one is used. */
export class RangeCache {
  constructor(servers, tag, size = 1000, timeout = 1000, token = undefined) {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    Object.assign(this, { servers, size: BigInt(size), timeout, headers });
    this.path = `/v1/segments/${encodeURIComponent(tag)}/lease?count=${size}`;
    this.beginAnew();
  }

  /** Drops what was leased. For a process that goes on from a snapshot, before it takes an id. */
  beginAnew() {
    this.next = 0n;
    this.end = 0n;
    this.spare = null;
    this.fetching = null;
    this.failedAt = -Infinity;
  }

  async nextId() {
    for (;;) {
      if (this.next === this.end && this.spare) {
        [this.next, this.end] = this.spare;
        this.spare = null;
      }
      const due = !this.spare && this.end - this.next <= this.size / 2n;
      const rested = this.next === this.end || performance.now() - this.failedAt > 100;
      if (due && rested && !this.fetching) {
        const fetching = this.#fetch();
        this.fetching = fetching;
        // Whoever waits for it is told of its error. What arrives after `beginAnew` is dropped.
        const done = (spare) => this.fetching === fetching && Object.assign(this, { spare, fetching: null });
        const failed = () => done(null) && (this.failedAt = performance.now());
        fetching.then(done, failed);
      }
      if (this.next < this.end) return this.next++;
      await this.fetching;
    }
  }

  async #fetch() {
    let error;
    for (const server of this.servers) {
      try {
        const signal = AbortSignal.timeout(this.timeout);
        const answer = await fetch(server + this.path, { method: "POST", headers: this.headers, signal });
        const lease = await answer.json();
        if (!answer.ok) throw new Error(lease.detail);
        const [start, end] = [BigInt(lease.start), BigInt(lease.end)];
        if (end - start !== this.size || start < this.end) {
          throw new Error(`${start} to ${end} is no new range: ask an operator`);
        }
        return [start, end];
      } catch (failure) {
        error = new Error(`no ids: ${server}: ${failure.cause ?? failure.message}`);
      }
    }
    throw error;
  }
}

const program = existsSync(process.argv[1] ?? "") ? realpathSync(process.argv[1]) : "/";
if (import.meta.url === pathToFileURL(program).href) {
  const [tag, count, ...servers] = process.argv.slice(2);
  const ids = new RangeCache(servers, tag, 1000, 1000, process.env.LEAF_TOKEN);
  for (let n = 0; n < Number(count); n++) console.log(String(await ids.nextId()));
}
