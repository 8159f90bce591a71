// Before the first paint: the theme and the language that were chosen last. A classic script, so that nothing flashes.
(() => {
  const root = document.documentElement;
  const kept = (name) => {
    try {
      return localStorage.getItem(`lamina.${name}`) || "";
    } catch {
      return ""; // storage may be forbidden: then the page asks the browser each time
    }
  };
  const theme = kept("theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const lang = kept("lang") || ((navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en");
  root.lang = lang === "zh" ? "zh-CN" : "en";
})();
