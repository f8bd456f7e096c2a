// The state of the page: texts by name, all of them in the address, so that a link or a reload restores the page.
export class State extends EventTarget {
  constructor(defaults) {
    super();
    this.defaults = defaults;
    this.values = this.read();
    addEventListener("popstate", () => {
      const before = this.values;
      this.values = this.read();
      this.tell(before);
    });
  }

  read() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  }

  get(name) { return String(this.values[name] ?? this.defaults[name] ?? ""); }

  // The whole number of that name; what is none counts as the default.
  number(name) {
    const text = this.get(name);
    return /^-?\d{1,9}$/.test(text) ? Number(text) : Number(this.defaults[name] ?? 0);
  }

  on(name) { return this.get(name) === "1"; }

  // Changes values; null brings back the default. A change is a step of the browser's history, unless it follows another at once (`replace`).
  set(changes, { replace = false } = {}) {
    const before = this.values, values = { ...before };
    for (const [name, value] of Object.entries(changes)) {
      const text = value === true ? "1" : value === false ? "0" : String(value);
      if (value === null || text === String(this.defaults[name] ?? "")) delete values[name];
      else values[name] = text;
    }
    const address = `#${new URLSearchParams(values)}`;
    if (address === `#${new URLSearchParams(before)}`) return;
    this.values = values;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    this.tell(before);
  }

  tell(before) {
    const names = new Set([...Object.keys(before), ...Object.keys(this.values)]);
    const changed = [...names].filter((name) => before[name] !== this.values[name]);
    this.dispatchEvent(new CustomEvent("change", { detail: new Set(changed) }));
  }
}
