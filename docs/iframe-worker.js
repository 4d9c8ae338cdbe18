// Search of a book that is opened from the disk: browsers start no worker there, so a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentDocument;
      inside.open();
      inside.write(`<script>postMessage = (data) => parent.postMessage(data, "*");<\/script><script src="${url}"><\/script>`);
      inside.close();
      this.frame = frame;
      this.loaded = new Promise((done) => frame.contentWindow.addEventListener("load", done));
      addEventListener("message", (event) => {
        if (event.source !== frame.contentWindow) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        this.onmessage?.(event);
      });
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
