// Pages that are opened as files may not start workers, so that the search would not work there. This
// puts a worker's script in a frame of the page, which may run it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      // What is sent before the script has run waits for it.
      this.ready = new Promise((resolve) => {
        const start = () => {
          document.body.append(this.frame);
          const inner = this.frame.contentWindow;
          inner.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          inner.importScripts = (...urls) => urls.reduce(
            (before, each) => before.then(() => load(inner, each)), Promise.resolve());
          load(inner, url).then(() => resolve(inner));
        };
        if (document.body) start();
        else addEventListener("DOMContentLoaded", start);
      });
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };

  function load(inner, url) {
    return new Promise((resolve, reject) => {
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = reject;
      inner.document.body.append(script);
    });
  }
}
