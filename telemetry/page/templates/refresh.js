"use strict";
(() => {
  const page = document.getElementById("page"), late = document.getElementById("late");
  const REFRESH_MS = 2000, TIMEOUT_MS = 10000;
  let readAt = Date.now();

  const refresh = async () => {
    const isRead = !getSelection().isCollapsed;  // the user may be copying text
    if (!document.hidden && !isRead) {
      try {
        const signal = AbortSignal.timeout(TIMEOUT_MS);
        const answer = await fetch(page.dataset.address, {cache: "no-store", signal});
        if (answer.status === 401) { location.reload(); return; }
        if (!answer.ok) throw new Error("it answers " + answer.status);
        const body = await answer.text();
        const focused = document.activeElement?.closest("#page a")?.getAttribute("href");
        page.innerHTML = body;
        if (focused) page.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
        document.title = page.querySelector("h1").textContent.trim() + " · " +
          page.querySelector(".who").textContent.trim();
        readAt = Date.now();
        late.hidden = true;
      } catch (error) {
        const seconds = Math.round((Date.now() - readAt) / 1000);
        late.textContent = `This service does not answer. The page shows its state of ${seconds} s ago.`;
        late.hidden = false;
      }
    }
    setTimeout(refresh, REFRESH_MS);
  };
  setTimeout(refresh, REFRESH_MS);
})();
