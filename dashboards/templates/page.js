"use strict";
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const th = button.parentNode, table = th.closest("table"), body = table.tBodies[0];
  const up = th.ariaSort === "ascending" ? -1 : 1, i = th.cellIndex;
  for (const other of th.parentNode.cells) other.removeAttribute("aria-sort");
  th.ariaSort = up > 0 ? "ascending" : "descending";
  const key = row => row.cells[i].dataset.v ?? row.cells[i].textContent;
  const order = (a, b) => a - b || a.localeCompare(b, "en", { numeric: true });
  body.append(...[...body.rows].sort((a, b) => up * order(key(a), key(b))));
};
for (const field of document.querySelectorAll("input[type=search]")) field.oninput = () => {
  const wanted = field.value.toLowerCase();
  const items = document.getElementById(field.dataset.of).querySelectorAll("tbody tr, details");
  for (const item of items) item.hidden = !item.textContent.toLowerCase().includes(wanted);
};
// Nights end on the right, and the last is what is looked for.
for (const sheet of document.querySelectorAll(".latest")) sheet.scrollLeft = sheet.scrollWidth;
onbeforeprint = () => { for (const d of document.querySelectorAll("details")) d.open = true; };
