// Sorting, filtering and the choice of light or dark. Without it the page is complete all the same.
"use strict";
(function () {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.setAttribute("aria-label", "Change between light and dark");
  button.hidden = false;
  name();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });

  // "−0.52", "0.47 to 0.57", "<.001", "1,234", "–"
  const value = (text) => {
    const found = text.replace(/,/g, "").replace(/−/g, "-").match(/^(<)?\s*([+-]?\d*\.?\d+(?:e[+-]?\d+)?)/);
    return found ? Number(found[2]) - (found[1] ? 1e-9 : 0) : NaN;
  };
  const collator = new Intl.Collator(undefined, { numeric: true });

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, at) => {
      const press = document.createElement("button");
      press.type = "button";
      press.append(...head.childNodes);
      head.append(press);
      head.setAttribute("aria-sort", "none");
      press.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "descending" ||
          (head.getAttribute("aria-sort") === "none" && !head.classList.contains("n"));
        heads.forEach((one) => one.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "ascending" : "descending");
        const way = down ? 1 : -1;
        const numbers = head.classList.contains("n");
        const keyed = [...table.tBodies[0].rows].map((row, place) => {
          const text = row.cells[at].textContent;
          return { row, place, key: numbers ? value(text) : text };
        });
        keyed.sort((a, b) => {
          if (numbers) {
            if (Number.isNaN(a.key) || Number.isNaN(b.key)) {
              return Number.isNaN(a.key) - Number.isNaN(b.key) || a.place - b.place;
            }
            return way * (a.key - b.key) || a.place - b.place;
          }
          return way * collator.compare(a.key, b.key) || a.place - b.place;
        });
        table.tBodies[0].append(...keyed.map((one) => one.row));
      });
    });
  }

  function filterable(box) {
    const table = box.querySelector("table");
    const rows = [...table.tBodies[0].rows];
    const caption = table.caption.textContent;
    const tools = document.createElement("div");
    tools.className = "tools";
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "Filter rows";
    field.setAttribute("aria-label", "Filter rows of: " + caption);
    tools.append(field);
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
    const pickers = ["verdict", "group", "measure"].filter((one) => heads.includes(one)).map((one) => {
      const at = heads.indexOf(one);
      const known = [...new Set(rows.map((row) => row.cells[at].textContent))];
      if (known.length < 2 || known.length > 30) { return null; }
      const pick = document.createElement("select");
      pick.setAttribute("aria-label", "Show rows by " + one + " of: " + caption);
      pick.append(new Option("any " + one, ""), ...known.map((text) => new Option(text, text)));
      tools.append(pick);
      return { pick, at };
    }).filter(Boolean);
    const count = box.querySelector("[data-count]");
    const said = count.textContent;
    count.setAttribute("role", "status");
    const apply = () => {
      const wanted = field.value.toLocaleLowerCase();
      let left = 0;
      for (const row of rows) {
        const fits = row.textContent.toLocaleLowerCase().includes(wanted) &&
          pickers.every(({ pick, at }) => !pick.value || row.cells[at].textContent === pick.value);
        row.hidden = !fits;
        left += fits;
      }
      const all = left === rows.length;
      count.textContent = all ? said : left + " of " + rows.length + " rows shown.";
    };
    field.addEventListener("input", apply);
    pickers.forEach(({ pick }) => pick.addEventListener("change", apply));
    box.prepend(tools);
  }

  document.querySelectorAll(".table").forEach((box) => {
    if (box.hasAttribute("data-tools")) { filterable(box); }
    sortable(box.querySelector("table"));
  });
})();
