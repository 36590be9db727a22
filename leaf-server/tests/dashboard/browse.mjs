// Looks at the dashboard in a real browser. It is told what to do by lines on standard input, and
// answers each by a line: `ok` with the milliseconds that it took, or `failed …`. The test that starts it drives the node beside it.
//
//   open URL              a page of its own, in the light theme, at the width of a desk
//   token TOKEN           gives it the token, in the dialog that asks for one
//   wait MS TEXT          waits until the page has the text somewhere that can be seen
//   health MS TEXT        waits until the line of the health has the text
//   gone MS TEXT          waits until it has not
//   number MS NAME N      waits until the figure of this name is N or more
//   shut MS               waits until no dialog is open
//   moves MS SELECTOR     waits until the text of this element has changed twice
//   mark MS TAG WORD      waits until this word stands beside the tag
//   no mark MS TAG WORD   waits until it does not
//   rows MS N             waits until so many tags are shown
//   work MS               for how long the page was at work at a time, at most, within this time
//   press NAME            presses the button of this name, in the dialog if one is open
//   key NAME              presses a key
//   fill LABEL TEXT       fills the field of this label, in the dialog if one is open
//   axe THEME             what axe-core finds that is serious or worse
//   width PIXELS          the page at this width; fails where it can be scrolled sideways
//   picture FILE THEME    a picture of the page
//   errors                what the page has complained of, the policy of contents included
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
let page;
let errors = [];

const scope = async () => ((await page.locator("dialog[open]").count()) ? page.locator("dialog[open]") : page);
const seen = (text) => page.evaluate((text) => document.body.innerText.includes(text), text);

const mark = (tag) => page.evaluate((tag) => [...document.querySelectorAll("#rows tr")].find((row) => row.querySelector("button").textContent === tag)?.querySelector(".mark").textContent, tag);

async function until(ms, what, holds) {
  const end = Date.now() + Number(ms);
  for (;;) {
    if (await holds()) return Date.now();
    if (Date.now() > end) throw new Error(`${what}, in ${ms} ms; the page: ${await page.evaluate(() => document.body.innerText)}`);
    await page.waitForTimeout(50);
  }
}

const commands = {
  async open(url) {
    page = await browser.newPage({ viewport: { width: 1280, height: 1000 }, colorScheme: "light" });
    errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (message) => {
      // A refused token is the server's answer, which the browser notes, too.
      if (message.type() === "error" && !/status of (401|403|404|409|412|400)/.test(message.text())) errors.push(message.text());
    });
    await page.goto(url);
  },
  async token(token) {
    await page.locator("dialog[open] input[name=token]").fill(token);
    await page.getByRole("button", { name: "Use it" }).click();
  },
  async wait(ms, ...text) {
    await until(ms, `no ${text.join(" ")}`, () => seen(text.join(" ")));
  },
  async health(ms, ...text) {
    const told = () => page.evaluate(() => document.getElementById("health").innerText);
    await until(ms, `no ${text.join(" ")}`, async () => (await told()).includes(text.join(" ")));
  },
  async gone(ms, ...text) {
    await until(ms, `still ${text.join(" ")}`, async () => !(await seen(text.join(" "))));
  },
  async number(ms, name, least) {
    const value = () => page.evaluate((name) => [...document.querySelectorAll("dt")].find((dt) => dt.textContent === name.replaceAll("_", " "))?.nextSibling.textContent, name);
    await until(ms, `${name} is not ${least}`, async () => Number.parseFloat((await value())?.replaceAll(",", "").replace(/K$/, "e3")) >= Number(least));
  },
  async mark(ms, tag, word) {
    await until(ms, `${tag} is not ${word}`, async () => (await mark(tag)) === word);
  },
  async no(_, ms, tag, word) {
    await until(ms, `${tag} is ${word}`, async () => (await mark(tag)) !== word);
  },
  async rows(ms, count) {
    const shown = () => page.locator("#rows tr").count();
    await until(ms, `not ${count} tags`, async () => (await shown()) === Number(count));
  },
  async work(ms) {
    return page.evaluate((ms) => new Promise((resolve) => {
      let longest = 0, last = performance.now();
      const end = last + ms;
      // A turn of the loop that comes late waited for the page.
      const turn = () => {
        const now = performance.now();
        longest = Math.max(longest, now - last);
        last = now;
        now < end ? setTimeout(turn) : resolve(longest);
      };
      turn();
    }), Number(ms));
  },
  async shut(ms) {
    await until(ms, "a dialog is open", async () => !(await page.locator("dialog[open]").count()));
  },
  async moves(ms, ...selector) {
    const seen = new Set();
    await until(ms, `${selector.join(" ")} stands`, async () => {
      seen.add(await page.locator(selector.join(" ")).first().textContent());
      return seen.size > 2;
    });
  },
  async press(...name) {
    await (await scope()).getByRole("button", { name: name.join(" "), exact: true }).click();
  },
  async key(name) {
    await page.keyboard.press(name);
  },
  async fill(label, ...text) {
    const name = label.replaceAll("_", " ");
    const exact = (await scope()).getByLabel(name, { exact: true });
    await ((await exact.count()) ? exact : (await scope()).getByLabel(name)).fill(text.join(" "));
  },
  async axe(theme) {
    await page.emulateMedia({ colorScheme: theme });
    await page.waitForTimeout(100);
    // The policy of contents holds for the page, not for what the test looks with.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run());
    const bad = violations.filter((it) => ["serious", "critical"].includes(it.impact));
    if (bad.length) throw new Error(bad.map((it) => `${it.id}: ${it.nodes.map((node) => node.html).join(" ")}`).join("; "));
  },
  async width(pixels) {
    await page.setViewportSize({ width: Number(pixels), height: 800 });
    await page.waitForTimeout(200);
    const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    if (wide > room) throw new Error(`the page is ${wide} wide in ${room}`);
  },
  async picture(file, theme) {
    await page.emulateMedia({ colorScheme: theme });
    await page.waitForTimeout(1200);
    await page.screenshot({ path: file, fullPage: true });
  },
  async errors() {
    if (errors.length) throw new Error(errors.join("; "));
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  const begun = Date.now();
  try {
    const told = await commands[command](...words);
    console.log(`ok ${Math.round(told ?? Date.now() - begun)}`);
  } catch (error) {
    console.log(`failed ${line}: ${String(error.message).replaceAll("\n", " | ")}`);
  }
}
await browser.close();
