// Puts the page of a history together.
function showHistoryTexts() {
  const { claim, recommendation, assumptions, audit } = DATA.history;
  byId("claim").textContent = claim;
  byId("recommendation").textContent = recommendation;
  fillList("assumptions", assumptions);
  fillDescriptions("audit", audit);
}

showHistoryTexts();
showHistory(DATA.history);
byId("history-line").hidden = true; // the heading repeats it
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
document.querySelectorAll(".chart").forEach((box) => chartResizer.observe(box));
document.documentElement.dataset.ready = "yes";
