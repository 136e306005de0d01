// Keeps a page up to date: listens for what has changed, fetches the page again, and puts the parts
// marked data-live in place. Without this script a page is as it was when it was loaded.
"use strict";
(() => {
  const watch = document.body.dataset.watch;
  const light = document.getElementById("live");
  const said = document.getElementById("live-text");
  const quietMs = 1500;
  const pollMs = 30000;
  let changed = new Set();
  let fetching = false;
  let again = false;

  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const duration = (seconds) => {
    let left = Math.max(0, Math.floor(seconds));
    if (left >= 600) left -= left % 60;
    const parts = [];
    for (const [size, unit] of units) {
      const count = Math.floor(left / size);
      left %= size;
      if (count) parts.push(`${count} ${unit}`);
      else if (parts.length) break;
    }
    return parts.slice(0, 2).join(" ") || "0 s";
  };

  // The server's clock counts: ages go on from what it said.
  const grow = () => {
    for (const one of document.querySelectorAll("time[data-age]")) {
      if (!one.shownAt) {
        one.shownAt = performance.now();
        one.start = secondsIn(one.textContent);
      }
      one.textContent = duration(one.start + (performance.now() - one.shownAt) / 1000);
    }
  };
  const sizes = Object.fromEntries(units.map(([size, unit]) => [unit, size]));
  const secondsIn = (text) => {
    let total = 0;
    for (const [, count, unit] of text.matchAll(/(\d+) (d|h|min|s)\b/g)) {
      total += Number(count) * sizes[unit];
    }
    return total;
  };

  const show = (text, on) => {
    if (!light) return;
    light.hidden = false;
    light.classList.toggle("off", !on);
    if (said.textContent !== text) said.textContent = text;
  };

  const place = (fresh) => {
    for (const part of fresh.querySelectorAll("[data-live][id]")) {
      const old = document.getElementById(part.id);
      if (!old || old.innerHTML === part.innerHTML) continue;
      const held = old.contains(document.activeElement) ? document.activeElement : null;
      const key = held && (held.id ? `#${CSS.escape(held.id)}` : held.getAttribute("href") &&
        `a[href="${CSS.escape(held.getAttribute("href"))}"]`);
      const opened = [...old.querySelectorAll("details")].map((one) => one.open);
      const scrolled = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      old.replaceWith(document.adoptNode(part));
      const now = document.getElementById(part.id);
      now.querySelectorAll("details").forEach((one, at) => { if (opened[at]) one.open = true; });
      now.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
      if (key) now.querySelector(key)?.focus({ preventScroll: true });
    }
    for (const card of document.querySelectorAll("[data-ref]")) {
      if (changed.has(card.dataset.ref)) card.classList.add("changed");
    }
    changed = new Set();
  };

  const refresh = async () => {
    if (fetching) { again = true; return; }
    fetching = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.redirected && answer.url.includes("/sign-in")) { location.reload(); return; }
      if (answer.ok) {
        place(new DOMParser().parseFromString(await answer.text(), "text/html"));
        document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed || 0) + 1);
      }
    } catch { show("not reachable", false); }
    setTimeout(() => {
      fetching = false;
      if (again) { again = false; refresh(); }
    }, quietMs);
  };

  const listen = () => {
    const about = document.body.dataset.pr ? `?pr=${encodeURIComponent(document.body.dataset.pr)}` : "";
    const stream = new EventSource(`/ui/live${about}`);
    const heard = (event) => {
      show("live", true);
      const news = JSON.parse(event.data);
      for (const ref of news.changed) changed.add(ref);
      const own = document.body.dataset.pr;
      if (!own || event.type === "hello" || news.changed.includes(own)) refresh();
    };
    stream.addEventListener("hello", heard);
    stream.addEventListener("board", heard);
    stream.onerror = () => {
      show("reconnecting", false);
      if (stream.readyState === EventSource.CLOSED) {
        show("every 30 s", false);
        setInterval(refresh, pollMs);
      }
    };
    addEventListener("pagehide", () => stream.close());
  };

  document.addEventListener("submit", (event) => {
    const button = event.target.querySelector("button[data-sure]");
    if (button && !confirm(button.dataset.sure)) event.preventDefault();
  });
  // A filter's answer that is the page to sign in at is no list: then the whole page goes there.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.xhr.responseURL.includes("/sign-in")) return;
    event.preventDefault();
    location.reload();
  });
  // A note is told once: the address loses it, so that a refresh does not tell it again.
  const address = new URL(location.href);
  if (address.searchParams.has("note")) {
    address.searchParams.delete("note");
    history.replaceState(null, "", address);
  }
  if (watch) listen();
  setInterval(grow, 5000);
})();
