// A browser starts no Worker for a page that it reads from a file, and the search needs one.  There, a
// hidden frame takes its place: it runs the same script and exchanges the same messages.
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    #waiting = [];
    #scope = null;

    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.#start(frame.contentWindow, String(address)), { once: true });
      document.body.append(frame);
    }

    #start(scope, address) {
      scope.postMessage = (data) => this.#tell(data);
      scope.importScripts = async (...addresses) => {
        for (const one of addresses) await load(scope.document, new URL(one, address).href);
      };
      load(scope.document, address).then(() => {
        this.#scope = scope;
        for (const data of this.#waiting.splice(0)) this.postMessage(data);
      });
    }

    #tell(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    postMessage(data) {
      if (this.#scope === null) this.#waiting.push(data);
      else this.#scope.dispatchEvent(new this.#scope.MessageEvent("message", { data }));
    }

    terminate() {
      this.#scope?.frameElement?.remove();
    }
  }

  function load(page, address) {
    return new Promise((done, failed) => {
      const script = page.createElement("script");
      script.src = address;
      script.onload = done;
      script.onerror = () => failed(new Error(`cannot load ${address}`));
      page.head.append(script);
    });
  }

  window.Worker = FrameWorker;
}
