// Puts the page of a history together.
function showHistoryWords() {
  byId("claim").textContent = DATA.history.claim;
  byId("todo").textContent = DATA.history.todo;
  byId("assumptions").replaceChildren(...DATA.history.assumptions.map((text) => element("li", { text })));
  byId("audit").replaceChildren(
    ...DATA.history.audit.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))),
  );
}

showHistoryWords();
showHistory(DATA.history);
byId("history-line").hidden = true; // the heading says it
drawHistory();
addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  drawHistory();
});
addEventListener("afterprint", () => {
  delete document.documentElement.dataset.theme;
  drawHistory();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHistory);
document.querySelectorAll(".chart").forEach((box) => resized.observe(box));
document.documentElement.dataset.ready = "yes";
