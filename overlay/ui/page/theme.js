// Applies the chosen theme before the page is drawn, so that it does not flash.
'use strict';
(() => {
  const themes = ['system', 'light', 'dark'];
  const read = () => {
    try {
      const kept = localStorage.getItem('theme');
      return themes.includes(kept) ? kept : 'system';
    } catch { // the browser keeps nothing
      return 'system';
    }
  };
  const apply = (theme) => { document.documentElement.dataset.theme = theme; };
  apply(read());
  document.addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    const show = () => { button.textContent = 'Theme: ' + document.documentElement.dataset.theme; };
    show();
    button.addEventListener('click', () => {
      const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
      apply(next);
      try { localStorage.setItem('theme', next); } catch { /* it holds until the page is closed */ }
      show();
    });
  });
})();
