// Sets the chosen theme before the first paint. The other preferences are read by src/store/prefs.ts.
try {
  const prefs = JSON.parse(localStorage.getItem("postrider.prefs") ?? "{}");
  if (prefs.theme === "light" || prefs.theme === "dark") document.documentElement.dataset.theme = prefs.theme;
} catch {
  // A browser without storage follows the theme of the system.
}
