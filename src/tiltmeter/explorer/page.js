// The explorer: what is asked stands in the address, what is answered on the page. Whatever comes
// from data or from the user is set as text, never as HTML.
"use strict";
(function () {
  const root = document.documentElement;
  const at = (id) => document.getElementById(id);
  const stops = document.body.dataset.stops.split(",").map(Number);
  const withImages = document.body.dataset.images === "yes";
  const by = at("by"), slider = at("k"), sides = at("sides"), compare = at("compare");
  const PAUSE = 200; // milliseconds without a key before a prompt is asked
  const COLOURS = 8, PATTERNS = 8;
  // a group that is called by a colour gets that colour
  const CALLED = { blue: 0, orange: 1, green: 2, violet: 3, red: 5, yellow: 6, grey: 7 };

  const make = (tag, name, ...inside) => {
    const made = document.createElement(tag);
    if (name) { made.className = name; }
    made.append(...inside);
    return made;
  };
  const own = (text) => make("bdi", "", text);
  const short = (text, most) => {
    const signs = Array.from(text);
    return signs.length > most ? signs.slice(0, most - 1).join("") + "…" : text;
  };
  const number = (x, digits = 2) =>
    x === null ? "–" : x.toFixed(digits).replace("-", "−").replace(/^−(0\.?0*)$/, "$1");
  const ratio = (x) => (x === null ? "–" : x >= 9.995 ? x.toFixed(0) + "x" : x >= 0.01 ? x.toFixed(2) + "x" : x.toPrecision(1) + "x");
  const whole = (x) => (Number.isInteger(x) ? String(x) : x.toFixed(1));
  const chances = (p) => (p === null ? "–" : p < 0.001 ? "<.001" : p.toFixed(3).replace(/^0/, ""));

  // --- light and dark --------------------------------------------------------------------------
  const theme = at("theme");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.setAttribute("aria-label", "Change between light and dark");
  theme.hidden = false;
  nameTheme();
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });

  // --- how groups look -------------------------------------------------------------------------
  function looks(names) {
    const parts = names.map((name) => name.split(" | "));
    const crossed = parts.every((one) => one.length === parts[0].length && one.length > 1);
    const last = parts.map((one) => (crossed ? one[one.length - 1] : one.join(" | ")));
    const rest = parts.map((one) => (crossed ? one.slice(0, -1).join(" | ") : ""));
    const firsts = [...new Set(last)], others = [...new Set(rest)];
    const called = firsts.every((name) => name in CALLED);
    const taken = new Set();
    return names.map((name, place) => {
      const rank = firsts.indexOf(last[place]);
      const colour = called ? CALLED[last[place]] : rank % COLOURS;
      const pattern = (others.indexOf(rest[place]) + Math.floor(rank / COLOURS)) % PATTERNS;
      const letters = crossed ? parts[place].map((one) => initial(one)).join("") : initial(name);
      const before = crossed ? parts[place].slice(0, -1).map((one) => initial(one)).join("") : "";
      const more = (last[place].toLocaleUpperCase().match(/\p{L}/gu) || []).slice(0, 40);
      const sign = [letters, ...more.map((one) => before + one), ...more.map((one) => letters + one)]
        .find((one) => one && Array.from(one).length <= 3 && !taken.has(one)) || String(place + 1);
      taken.add(sign);
      return { name, sign, look: "c" + colour + (pattern ? " p" + pattern : "") };
    });
  }
  function initial(name) {
    const found = name.toLocaleUpperCase().match(/\p{L}|\p{N}{1,2}/u);
    return found ? found[0] : "";
  }

  // --- one side: a prompt, a model, and what comes of them --------------------------------------
  class Side {
    constructor(place) {
      const copy = at("side-template").content.cloneNode(true);
      this.box = copy.querySelector(".side");
      this.place = place;
      this.text = this.box.querySelector("input");
      this.model = this.box.querySelector("select");
      this.said = this.box.querySelector(".said");
      this.found = this.box.querySelector(".found");
      this.tiles = this.box.querySelector(".tiles");
      this.which = this.box.querySelector(".which");
      this.answer = null;
      this.only = null;
      this.here = -1;
      this.box.querySelector(".model").hidden = this.model.options.length < 2;
      const what = place ? "second" : "first";
      this.box.setAttribute("aria-label", "The " + what + " ranking");
      this.box.querySelector(".scroll").setAttribute("aria-label", "Groups of the " + what + " ranking");
      this.tiles.setAttribute("aria-label", "Images of the " + what + " ranking, best first");
      this.text.addEventListener("focus", () => { active = this; });
      this.text.addEventListener("input", () => {
        clearTimeout(this.wait);
        this.wait = setTimeout(() => changed("typing", this), PAUSE);
      });
      this.text.addEventListener("keydown", (event) => {
        if (event.key === "Enter") {
          event.preventDefault();
          clearTimeout(this.wait);
          changed("", this);
        }
      });
      this.model.addEventListener("change", () => changed("", this));
      this.tiles.addEventListener("keydown", (event) => this.move(event));
      this.tiles.addEventListener("pointerover", (event) => this.point(event.target));
      this.tiles.addEventListener("click", (event) => this.point(event.target));
      sides.append(this.box);
    }

    async ask(state) {
      const [text, model] = state.asked[this.place];
      const question = JSON.stringify({ text, model, by: state.by, k: state.k });
      if (question === this.question) { return; }
      this.question = question;
      if (this.stop) { this.stop.abort(); }
      this.stop = new AbortController();
      if (!text.trim()) {
        this.tell("Type a prompt, or choose a word.");
        return;
      }
      this.box.setAttribute("aria-busy", "true");
      try {
        const response = await fetch("rank", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: question,
          signal: this.stop.signal,
        });
        const told = await response.json();
        if (this.question !== question) { return; }
        if (response.ok) { this.show(told); } else { this.tell(told.error, true); }
      } catch (error) {
        if (error.name === "AbortError" || this.question !== question) { return; }
        this.question = null; // the same question may be asked again
        this.tell("No answer. Is tiltmeter explore still running?", true);
      } finally {
        if (this.question === question || this.question === null) {
          this.box.removeAttribute("aria-busy");
        }
      }
    }

    tell(message, wrong) {
      this.answer = null;
      this.box.removeAttribute("aria-busy");
      this.said.classList.toggle("wrong", Boolean(wrong));
      this.said.textContent = short(message, 400);
      this.found.hidden = true;
      inBoth();
    }

    show(told) {
      this.answer = told;
      this.looks = looks(told.groups.map((one) => one.name));
      this.said.classList.remove("wrong");
      this.said.replaceChildren(...sentence(told));
      this.found.hidden = false;
      this.here = -1;
      this.which.textContent = "";
      this.drawGroups();
      this.drawTiles();
      this.choose(this.only);
      for (const side of shown()) { side.scale(); }
      inBoth();
    }

    drawGroups() {
      const told = this.answer;
      this.box.querySelector("caption").textContent = "Each group in the top " + told.k + ", beside chance";
      this.box.querySelector("thead .top-k").textContent = "Top " + told.k;
      this.box.querySelector("tbody").replaceChildren(...told.groups.map((one, place) => {
        const { sign, look } = this.looks[place];
        const key = make("span", "key " + look, make("span", look, sign));
        key.setAttribute("aria-hidden", "true");
        const press = make("button", "only", key, own(short(one.name, 120)));
        press.type = "button";
        press.title = one.size.toLocaleString("en") + " images. Press to see only these";
        press.setAttribute("aria-pressed", "false");
        press.addEventListener("click", () => this.choose(this.only === one.name ? null : one.name));
        const track = make("span", "track", make("i", "band"), make("i", "bar " + look), make("i", "mean"));
        track.setAttribute("aria-hidden", "true");
        const head = make("th", "", press, track);
        head.scope = "row";
        head.setAttribute("role", "rowheader");
        const mark = one.direction > 0 ? "▲ " : one.direction < 0 ? "▼ " : "";
        const count = make("span", "count", mark + whole(one.count));
        if (mark) { count.setAttribute("aria-label", whole(one.count) + (one.direction > 0 ? ", more than chance" : ", fewer than chance")); }
        const chance = Math.round(one.null_low * told.k) + " to " + Math.round(one.null_high * told.k);
        const labelled = (label, box) => {
          box.dataset.label = label;
          box.setAttribute("role", "cell"); // narrow windows lay the table out as blocks
          return box;
        };
        const cell = (label, below, ...value) =>
          labelled(label, make("td", "n", ...value, make("small", "", below)));
        const lift = told.neutral && told.neutral.lift && told.neutral.lift[place];
        const interval = make("span", "interval", " [" + number(one.c_asc_low) + ", " + number(one.c_asc_high) + "]");
        const row = make("tr", one.direction ? "significant" : "", head, cell("Lift", lift ? ratio(lift.low) + " to " + ratio(lift.high) : "", ratio(lift && lift.ratio)),
          cell("top " + told.k, chance, count),
          cell("Skew", one.skew === null ? "undefined" : number(one.skew_null_low, 1) + " to " + number(one.skew_null_high, 1), number(one.skew)),
          cell("C-ASC", one.c_asc === null ? "undefined" : "±" + number(one.c_asc_null), number(one.c_asc), ...(one.c_asc === null ? [] : [interval])),
          labelled("p", make("td", "n", chances(one.p_holm))));
        if (lift) {
          row.cells[1].title = lift.as_far + " of " + told.neutral.words + " neutral words are as far";
        }
        if (told.neutral) {
          row.cells[4].title = told.neutral.c_asc_as_far[place] + " of " + told.neutral.words + " neutral words are as far";
        }
        row.setAttribute("role", "row");
        return row;
      }));
      const max = told.max_skew, ties = told.tied > 1
        ? " · " + told.tied.toLocaleString("en") + " images tie for the last places" : "";
      this.box.querySelector(".numbers").replaceChildren(
        "MaxSkew@" + told.k + " ", make("b", "", number(max.value)),
        max.value === null ? " (undefined)" : ", chance " + number(max.null_low) + " to " + number(max.null_high),
        told.neutral ? ", neutral words " + number(told.neutral.max_skew.low) + " to " + number(told.neutral.max_skew.high) : "",
        " · p " + chances(max.p) + " · n = " + told.n.toLocaleString("en") + ties);
    }

    scale() { // bars of both sides are drawn to one scale
      const most = Math.max(...shown().flatMap((side) =>
        side.answer ? side.answer.groups.flatMap((one) => [one.share, one.null_high]) : [0]), 0.01);
      const part = (share) => (100 * share / most).toFixed(2) + "%";
      if (!this.answer) { return; }
      this.box.querySelectorAll("tbody tr").forEach((row, place) => {
        const one = this.answer.groups[place];
        const [band, bar, mean] = row.querySelectorAll(".track i");
        band.style.left = part(one.null_low);
        band.style.width = part(one.null_high - one.null_low);
        bar.style.width = part(one.share);
        mean.style.left = part(one.expected);
      });
    }

    drawTiles() {
      const top = this.answer.top, names = this.answer.groups;
      this.tiles.classList.toggle("mid", top.length > 60 && top.length <= 300);
      this.tiles.classList.toggle("many", top.length > 300);
      this.tiles.replaceChildren(...top.map((one, place) => {
        const { sign, look } = this.looks[one.group];
        const tile = make("div", "tile " + look);
        tile.id = "tile-" + this.place + "-" + place;
        tile.setAttribute("role", "option");
        tile.setAttribute("aria-selected", "false");
        tile.setAttribute("aria-label", (place + 1) + ", " + sign + ", " + short(names[one.group].name, 120));
        if (withImages) {
          const image = make("img");
          image.loading = "lazy";
          image.alt = "";
          image.src = "image/" + one.row;
          tile.append(image);
        }
        tile.append(make("span", look, sign));
        tile.dataset.row = one.row;
        return tile;
      }));
    }

    choose(name) {
      const names = this.answer.groups.map((one) => one.name);
      this.only = names.includes(name) ? name : null;
      this.box.querySelectorAll(".only").forEach((press, place) =>
        press.setAttribute("aria-pressed", String(names[place] === this.only)));
      [...this.tiles.children].forEach((tile, place) => tile.classList.toggle("away",
        this.only !== null && names[this.answer.top[place].group] !== this.only));
    }

    point(target) {
      const tile = target.closest && target.closest(".tile");
      if (tile) { this.go([...this.tiles.children].indexOf(tile)); }
    }

    go(place) {
      const tiles = this.tiles.children, before = tiles[this.here];
      if (before) { before.classList.remove("here"); before.setAttribute("aria-selected", "false"); }
      this.here = Math.max(0, Math.min(place, tiles.length - 1));
      const tile = tiles[this.here], one = this.answer.top[this.here];
      tile.classList.add("here");
      tile.setAttribute("aria-selected", "true");
      this.tiles.setAttribute("aria-activedescendant", tile.id);
      const group = this.answer.groups[one.group].name;
      tile.setAttribute("aria-label",
        (this.here + 1) + ", " + this.looks[one.group].sign + ", " + short(group, 120) + ", " + short(one.id, 120) + ", score " + number(one.score, 3));
      this.which.replaceChildren("No. " + (this.here + 1) + " · ", own(short(one.id, 120)), " · ",
        own(short(group, 120)), " · score " + number(one.score, 3));
    }

    move(event) {
      const tiles = this.tiles.children;
      if (!tiles.length) { return; }
      const wide = [...tiles].findIndex((tile) => tile.offsetTop > tiles[0].offsetTop);
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide < 0 ? 0 : wide, ArrowUp: wide < 0 ? 0 : -wide,
        Home: -tiles.length, End: tiles.length }[event.key];
      if (step === undefined) { return; }
      event.preventDefault();
      this.go(this.here < 0 ? 0 : this.here + step);
      tiles[this.here].scrollIntoView({ block: "nearest" });
    }
  }

  // the group whose lift is farthest from 1, beside neutral words
  function lifted(told) {
    const known = (told.neutral && told.neutral.lift || []).map((one, place) => one && { ...one, name: told.groups[place].name });
    const [most] = known.filter(Boolean).sort((a, b) => Math.abs(Math.log(b.ratio)) - Math.abs(Math.log(a.ratio)));
    if (!most) { return []; }
    const others = told.groups.length === 2 ? told.groups.find((one) => one.name !== most.name).name : "the other groups";
    return ["Scores ", make("b", "", ratio(most.ratio)), " as high with ", make("b", "", own(short(most.name, 80))),
      " as with ", own(short(others, 80)), " (neutral words " + ratio(most.low) + " to " + ratio(most.high) + "). "];
  }

  function sentence(told) {
    const weight = (one) => Math.abs(one.share - one.expected);
    const far = told.groups.filter((one) => one.direction).sort((a, b) => weight(b) - weight(a));
    const more = far.find((one) => one.direction > 0), fewer = far.find((one) => one.direction < 0);
    const part = (one) => [make("b", "", whole(one.count)), one.count === 1 ? " is " : " are ",
      make("b", "", own(short(one.name, 80))), " (chance: " + Math.round(one.null_low * told.k) + " to " +
      Math.round(one.null_high * told.k) + ")"];
    if (!far.length) {
      return [...lifted(told), "In the top " + told.k + " every group comes up about as often as chance would have it; " +
        "C-ASC and lift compare all images."];
    }
    const parts = [more, fewer].filter(Boolean).map(part);
    const said = [...lifted(told), "Of the top " + told.k + ", ", ...parts[0], ...(parts[1] ? [" and ", ...parts[1]] : []), "."];
    if (told.neutral) { // chance alone is easily beaten: any direction in a space favours some group
      const { words, max_skew: { as_far: many } } = told.neutral;
      said.push(make("span", "beside", " " + (many ? many + " of " + words : "None of " + words) +
        " neutral words lean" + (many === 1 ? "s" : "") + " as far."));
    }
    return said;
  }

  // --- what is asked, and the address ------------------------------------------------------------
  const first = new Side(0);
  let second = null, active = first, place = stops.indexOf(100);
  let ks = stops;
  const shown = () => (second ? [first, second] : [first]);

  function inBoth() {
    const [a, b] = [first.answer, second && second.answer];
    if (!a || !b) { at("both").textContent = ""; return; }
    const rows = new Set(a.top.map((one) => one.row));
    const many = b.top.filter((one) => rows.has(one.row)).length;
    at("both").textContent = many + " of the top " + a.k + " are in both.";
  }

  function setK(k) {
    ks = stops.includes(k) ? stops : [...stops, k].sort((a, b) => a - b);
    slider.max = ks.length - 1;
    slider.value = ks.indexOf(k);
    nameK();
  }
  function nameK() {
    const k = ks[Number(slider.value)];
    at("k-now").textContent = k.toLocaleString("en");
    slider.setAttribute("aria-valuetext", "top " + k);
  }

  function open(two) {
    if (two && !second) {
      second = new Side(1);
      second.text.value = first.text.value;
      second.model.selectedIndex = (first.model.selectedIndex + 1) % first.model.options.length;
    } else if (!two && second) {
      second.box.remove();
      second = null;
      active = first;
    }
    sides.classList.toggle("two", Boolean(second));
    compare.setAttribute("aria-pressed", String(Boolean(second)));
    for (const side of shown()) {
      side.box.querySelector(".prompt .name").textContent = second ? (side.place ? "Second prompt" : "First prompt") : "Prompt";
    }
  }

  const now = () => ({
    asked: shown().map((side) => [side.text.value, Number(side.model.value)]),
    by: by.value,
    k: ks[Number(slider.value)],
  });

  function address(state) {
    const told = new URLSearchParams();
    const [[text, model], other] = state.asked;
    told.set("a", text);
    if (model) { told.set("m", model); }
    if (other) { told.set("b", other[0]); told.set("n", other[1]); }
    told.set("by", state.by);
    told.set("k", state.k);
    return "?" + told;
  }

  // A prompt that grows is one step back, however slowly it is typed; anything else is a new step.
  function changed(kind, side) {
    const state = now(), next = address(state);
    const before = new URLSearchParams(location.search).get(side && side.place ? "b" : "a") || "";
    const grows = kind === "typing" && side.text.value.startsWith(before) && before.trim() !== "" && side.grew;
    if (side) { side.grew = kind === "typing"; }
    if (next !== location.search) {
      history[grows ? "replaceState" : "pushState"](null, "", next);
    }
    answerAll(state);
  }

  function answerAll(state) {
    for (const side of shown()) { side.ask(state); }
    for (const press of at("words").querySelectorAll("button")) {
      press.setAttribute("aria-pressed", String(state.asked.some(([text]) => text === press.dataset.text)));
    }
  }

  function restore() {
    const told = new URLSearchParams(location.search);
    const word = at("words").querySelector("button");
    const model = (name) => {
      const asked = Number(told.get(name));
      return Number.isInteger(asked) && asked >= 0 && asked < first.model.options.length ? asked : 0;
    };
    const parts = (name) => (name || "").split("*").sort().join("*"); // of an intersection, in any order
    const known = [...by.options].find((one) => parts(one.value) === parts(told.get("by")));
    if (known) { by.value = known.value; }
    const most = stops[stops.length - 1], k = Number(told.get("k"));
    setK(Number.isInteger(k) && k >= 1 ? Math.min(k, most) : (place < 0 ? Math.min(100, most) : 100));
    open(told.has("b"));
    first.text.value = told.has("a") ? told.get("a") : (word ? word.dataset.text : "");
    first.model.value = String(model("m"));
    if (second) {
      second.text.value = told.get("b");
      second.model.value = String(model("n"));
    }
    for (const side of shown()) { side.grew = false; }
    const state = now();
    if (address(state) !== location.search) { history.replaceState(null, "", address(state)); }
    answerAll(state);
  }

  by.addEventListener("change", () => changed(""));
  slider.addEventListener("input", () => {
    nameK();
    clearTimeout(slider.wait);
    slider.wait = setTimeout(() => changed(""), 80);
  });
  compare.addEventListener("click", () => {
    open(!second);
    changed("");
    if (second) { second.text.focus(); second.text.select(); }
  });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  at("share").addEventListener("click", async () => {
    const press = at("share");
    try {
      await navigator.clipboard.writeText(location.href);
      press.textContent = "Copied";
    } catch {
      press.textContent = "Take it from the address bar";
    }
    setTimeout(() => { press.textContent = "Copy link"; }, 1600);
  });
  at("words").addEventListener("click", (event) => {
    const press = event.target.closest("button");
    if (!press) { return; }
    active.text.value = press.dataset.text;
    changed("", active);
  });
  at("filter").addEventListener("input", () => {
    const wanted = at("filter").value.trim().toLocaleLowerCase();
    at("words").querySelectorAll("details").forEach((group, nth) => {
      let left = 0;
      group.querySelectorAll("li").forEach((one) => {
        one.hidden = !one.textContent.toLocaleLowerCase().includes(wanted);
        left += !one.hidden;
      });
      group.hidden = !left;
      group.open = wanted ? left > 0 : nth === 0;
    });
  });
  window.addEventListener("popstate", restore);
  restore();
})();
