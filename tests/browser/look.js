// Unfolds everything, and returns what is wrong with the page as shown, one text a problem.
const found = [];
document.querySelectorAll("details").forEach((details) => (details.open = true));

const said = (node) => JSON.stringify(node.textContent.trim().slice(0, 40));
const rgba = (text) => {
  const parts = text.match(/[\d.]+/g).map(Number);
  return text === "none" ? [0, 0, 0, 0] : [parts[0], parts[1], parts[2], parts.length > 3 ? parts[3] : 1];
};
const colour = (text) => (text === "none" ? [0, 0, 0, 0] : rgba(text));
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const light = (c) => {
  const linear = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = (a, b) => {
  const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const ground = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
};
const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const refuse = (ink, under, what) => {
  const ratio = contrast(over(ink, under), under);
  if (ratio < LEAST_CONTRAST) found.push(`contrast ${ratio.toFixed(2)} of ${what}`);
};

// 1. Nothing is wider than the screen.
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width) {
  const wide = [...document.body.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > width + 0.5);
  const names = wide.slice(-3).map((e) => `${e.tagName.toLowerCase()} ${said(e)}`);
  found.push(`overflow: ${document.documentElement.scrollWidth} px wide: ${names.join("; ")}`);
}

// 2. Every text of the page against what lies under it.
let texts = 0;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  const parent = node.parentElement;
  if (!node.textContent.trim() || parent.closest("svg")) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  if (!range.getClientRects().length) continue;
  texts += 1;
  refuse(colour(getComputedStyle(parent).color), ground(parent), said(node));
}
for (const element of document.querySelectorAll("[data-label]")) {
  const before = getComputedStyle(element, "::before");
  if (before.content !== "none") refuse(colour(before.color), ground(element), before.content);
}

// 3. Labels of plots: against the page and every filled shape below them, apart from each other, inside the plot.
for (const svg of document.querySelectorAll("svg")) {
  const name = svg.getAttribute("aria-label");
  const frame = svg.getBoundingClientRect();
  const labels = [...svg.querySelectorAll("text")];
  const boxes = labels.map((label) => label.getBoundingClientRect());
  const shapes = [...svg.querySelectorAll("rect, circle, polygon, path")];
  labels.forEach((label, i) => {
    texts += 1;
    const ink = colour(getComputedStyle(label).fill);
    refuse(ink, ground(svg), `${said(label)} in ${name}`);
    for (const shape of shapes) {
      const fill = colour(getComputedStyle(shape).fill);
      if (fill[3] && touch(boxes[i], shape.getBoundingClientRect())) refuse(ink, over(fill, ground(svg)), `${said(label)} on a mark in ${name}`);
    }
    if (boxes[i].left < frame.left - 0.5 || boxes[i].right > frame.right + 0.5) found.push(`${said(label)} leaves ${name}`);
    for (let j = 0; j < i; j += 1) {
      const inner = { left: boxes[j].left + 0.5, right: boxes[j].right - 0.5, top: boxes[j].top + 2, bottom: boxes[j].bottom - 2 };
      if (touch(boxes[i], inner)) found.push(`${said(label)} touches ${said(labels[j])} in ${name}`);
    }
  });
}
if (texts < 20) found.push(`only ${texts} texts on the page`);
return [...new Set(found)];
