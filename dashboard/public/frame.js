// The only script of the preview frame. The frame is sandboxed into an opaque origin, and its policy allows no request.
// It shows HTML that its parent posts, without elements that could load, run or navigate.
const DROPPED = "script, iframe, frame, object, embed, base, meta, link, form, portal, fencedframe";

addEventListener("message", (event) => {
  if (event.source !== parent || typeof event.data?.html !== "string") return;
  const shown = new DOMParser().parseFromString(event.data.html, "text/html");
  for (const element of shown.querySelectorAll(DROPPED)) element.remove();
  // Only the body is shown, and the styles of mails are in the head.
  shown.body.prepend(...shown.head.querySelectorAll("style"));
  for (const element of shown.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      const isHandler = name.toLowerCase().startsWith("on");
      const isAddress = [
        "href",
        "src",
        "srcset",
        "action",
        "formaction",
        "xlink:href",
        "background",
        "poster",
      ].includes(name.toLowerCase());
      if (isHandler || (isAddress && !value.trim().toLowerCase().startsWith("data:image/")))
        element.removeAttribute(name);
      // A remote image is replaced by its address, which the reader can judge.
      if (element instanceof HTMLImageElement && name === "src" && !element.hasAttribute("src")) {
        element.replaceWith(shown.createTextNode(`[image: ${value}]`));
      }
    }
  }
  document.documentElement.replaceChild(document.adoptNode(shown.body), document.body);
});
