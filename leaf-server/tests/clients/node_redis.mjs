const [module, port, increments, flakes] = process.argv.slice(2);
const { createClient } = await import(module);

const client = createClient({ url: `redis://127.0.0.1:${port}` });
client.on("error", (error) => {
  throw error;
});
await client.connect();
for (let at = 0; at < Number(increments); at += 100) {
  const ids = await Promise.all(Array.from({ length: 100 }, () => client.incr("leaf-segment-test")));
  console.log(ids.join("\n"));
}
for (let at = 0; at < Number(flakes); at += 100) {
  const ids = await client.sendCommand(["SNOWFLAKE", "COUNT", "100"]);
  // A number would have lost its last digits.
  if (ids.some((id) => typeof id !== "string" || String(BigInt(id)) !== id)) throw new Error(`no texts: ${ids}`);
  console.log(ids.join("\n"));
}
await client.quit();
