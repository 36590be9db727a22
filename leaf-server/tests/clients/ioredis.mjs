import Redis from "ioredis";

const [port, increments, flakes] = process.argv.slice(2).map(Number);
const client = new Redis(port);
for (let at = 0; at < increments; at += 100) {
  const ids = await Promise.all(Array.from({ length: 100 }, () => client.incr("leaf-segment-test")));
  console.log(ids.join("\n"));
}
for (let at = 0; at < flakes; at += 100) {
  const ids = await Promise.all(Array.from({ length: 100 }, () => client.call("SNOWFLAKE")));
  // A number would have lost its last digits.
  if (ids.some((id) => typeof id !== "string" || String(BigInt(id)) !== id)) throw new Error(`no texts: ${ids}`);
  console.log(ids.join("\n"));
}
await client.quit();
