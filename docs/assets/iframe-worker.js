// Search in pages that were opened as files: a browser starts no worker there, so the script of the search runs in a
// hidden frame that has the same messages. Served pages use a worker.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve());
      this.frame = frame;
      this.ready = this.load(address);
    }

    load(address) {
      const page = this.frame.contentDocument;
      const script = page.createElement("script");
      return new Promise((resolve, reject) => {
        Object.assign(script, {src: address, onload: resolve, onerror: reject});
        page.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
  window.Worker = window.IFrameWorker;
}
