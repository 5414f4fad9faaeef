// Typeset what the Markdown extension marked as mathematics.
for (const place of document.querySelectorAll(".arithmatex")) {
  const display = place.tagName === "DIV";
  const text = place.textContent.trim().replace(/^\\[[(]|\\[\])]$/g, "");
  katex.render(text, place, { displayMode: display, throwOnError: false });
}
