// Looks at pages as a reader does, by a headless Chromium: see run-site.
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const [where, word, screenshots] = process.argv.slice(2);
const LOADS = [[360, 768], [1400]]; // Widths, and where a page is loaded again: what it shows may depend on the first.
const WIDTHS = LOADS.flat();
const root = resolve(where);
const isDirectory = statSync(root).isDirectory();
const files = isDirectory
  ? readdirSync(root, { recursive: true }).filter(file => /\.html$/.test(file) && !/(^|\/)toc\.html$/.test(file)).map(file => join(root, file))
  : [root];

const faults = new Set();
const ids = new Map(); // of each page
const links = []; // [page, where it leads to]
const named = url => decodeURIComponent(url.replace(pathToFileURL(root).href, '') || url);

// What sticks out at the right, and no part around it can be scrolled to it.
const overflowing = () => {
  const width = document.documentElement.clientWidth;
  const scrolls = it => ['auto', 'scroll'].includes(getComputedStyle(it).overflowX);
  const isReached = it => {
    for (let around = it.parentElement; around; around = around.parentElement) {
      if (scrolls(around) && around !== document.body && around !== document.documentElement) return true;
      if (getComputedStyle(around).clipPath !== 'none') return true; // It is for screen readers.
    }
    return false;
  };
  const out = [...document.body.querySelectorAll('*')].filter(it => {
    const box = it.getBoundingClientRect();
    return box.width > 0 && box.right > width + 1 && !isReached(it);
  });
  const innermost = out.filter(it => !out.some(other => other !== it && it.contains(other)));
  const told = innermost.map(it => `${it.tagName.toLowerCase()} ${Math.round(it.getBoundingClientRect().right)} px: ${it.textContent.trim().replace(/\s+/g, ' ').slice(0, 40)}`);
  if (document.scrollingElement.scrollWidth > width) told.push(`the page is ${document.scrollingElement.scrollWidth} px wide`);
  return told.slice(0, 3);
};

// Text that can hardly be read on what is behind it: less contrast than 3 to 1.
const faint = colorScheme => {
  const parts = colour => colour.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
  const light = colour => {
    const [red, green, blue] = parts(colour).map(part => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = it => {
    for (let around = it; around; around = around.parentElement) {
      const colour = getComputedStyle(around).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0.5) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = new Set();
  const walker = document.createTreeWalker(document.querySelector('main') ?? document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (walker.currentNode.data.trim()) texts.add(walker.currentNode.parentElement);
  const told = new Set();
  if (light(behind(document.body)) > 0.5 !== (colorScheme === 'light')) told.add('the page itself: its background is the other one');
  for (const it of texts) {
    if (it.closest('svg, script, style') || !it.checkVisibility()) continue;
    const [one, other] = [light(getComputedStyle(it).color), light(behind(it))];
    if ((Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 3) told.add(`${it.tagName.toLowerCase()}.${it.className}: ${it.textContent.trim().slice(0, 40)}`);
  }
  return [...told].slice(0, 3);
};

// What a page of mdBook is called: in its heading, in the sidebar and in the browser.
const titles = () => {
  const heading = document.querySelector('main h1')?.innerText.trim();
  const listed = document.querySelector('#mdbook-sidebar a.active')?.innerText.trim();
  return document.querySelector('#mdbook-sidebar') && { heading, listed, shown: document.title };
};

const data = mkdtempSync(join(tmpdir(), 'run-site-'));
const browser = await chromium.launchPersistentContext(data, {
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

async function look(file, page) {
  const url = pathToFileURL(file).href;
  const fault = text => faults.add(`${named(url)}: ${text}`);
  const watch = request => { if (!/^(file|data|blob|about):/.test(request.url())) fault(`asks for ${request.url()}`); };
  const missing = request => fault(`cannot load ${named(request.url())}`);
  const failed = error => fault(`error: ${error.message}`);
  page.on('request', watch).on('requestfailed', missing).on('pageerror', failed);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    for (const widths of LOADS) {
      await page.setViewportSize({ width: widths[0], height: 900 });
      await page.goto(url);
      for (const width of widths) {
        await page.setViewportSize({ width, height: 900 });
        for (const it of await page.evaluate(overflowing)) fault(`at ${width} px, ${colorScheme}, sticks out: ${it}`);
        if (screenshots && width !== 768) await page.screenshot({ path: join(screenshots, `${named(url).replace(/\W+/g, '-')}-${width}-${colorScheme}.png`) });
      }
    }
    for (const it of await page.evaluate(faint, colorScheme)) fault(`${colorScheme}, can hardly be read: ${it}`);
  }
  const { heading, listed, shown } = (await page.evaluate(titles)) ?? {};
  const wanted = url === pathToFileURL(join(root, 'index.html')).href ? heading : `${heading} - rlock`;
  if (heading !== listed || (heading && shown !== wanted)) fault(`its heading is ${heading}, the sidebar has ${listed}, and the title is ${shown}`);
  const found = await page.evaluate(() => ({
    ids: [...document.querySelectorAll('[id], a[name]')].map(it => it.id || it.name),
    links: [...document.querySelectorAll('a[href]')].map(it => it.href),
    broken: [...document.images].filter(it => !it.naturalWidth).map(it => it.src),
  }));
  await page.goto('about:blank');
  for (const it of found.broken) fault(`an image cannot be shown: ${it}`);
  ids.set(url, new Set(found.ids));
  for (const link of found.links) links.push([url, link]);
  page.off('request', watch).off('requestfailed', missing).off('pageerror', failed);
}

async function search(page) {
  await page.setViewportSize({ width: 1400, height: 900 });
  await page.goto(pathToFileURL(join(root, 'index.html')).href);
  await page.keyboard.press('s');
  await page.keyboard.type(word);
  const first = page.locator('#mdbook-searchresults a').first();
  await first.waitFor({ timeout: 60_000 });
  await first.click();
  await page.waitForSelector('main mark', { timeout: 60_000 });
  const seen = await page.locator('main').innerText();
  if (!seen.toLowerCase().includes(word.toLowerCase())) faults.add(`the search for ${word} leads to ${named(page.url())}, which lacks it`);
  return named(page.url());
}

try {
  const work = [...files];
  const one = async () => {
    const page = await browser.newPage();
    for (let file; (file = work.shift()); ) await look(file, page);
    await page.close();
  };
  await Promise.all([one(), one(), one()]);
  const seen = new Set();
  for (const [page, link] of links) {
    if (!link.startsWith('file:')) continue;
    const [to, anchor] = link.split('#');
    seen.add(link);
    if (!ids.has(to) && !statSync(fileURLToPath(to), { throwIfNoEntry: false })?.isFile()) faults.add(`${named(page)}: leads nowhere: ${named(link)}`);
    else if (anchor && ids.has(to) && !ids.get(to).has(decodeURIComponent(anchor))) faults.add(`${named(page)}: no such heading: ${named(link)}`);
  }
  console.log(`run-site: ${files.length} pages at ${WIDTHS.join(', ')} px, light and dark, and ${seen.size} links within them`);
  if (word) console.log(`run-site: a search for ${word} found ${await search(await browser.newPage())}`);
} finally {
  await browser.close();
  rmSync(data, { recursive: true, force: true });
}
if (faults.size) {
  for (const fault of faults) console.error(fault);
  process.exit(1);
}
