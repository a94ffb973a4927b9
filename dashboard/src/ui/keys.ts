/** Whether a key belongs to a field, a menu or a dialog, and not to the page. */
export function isTyping(event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return true;
  if (document.querySelector("[role=dialog]:not([hidden]), [role=menu]:not([hidden])")) return true;
  const target = event.target;
  return (
    target instanceof HTMLElement && target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]")
  );
}
