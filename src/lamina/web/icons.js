// The signs of the page, drawn here: strokes on a grid of 24. They are decoration; the label says what a button does.
const SHAPES = {
  plus: "M12 5v14M5 12h14",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM20 20l-4.7-4.7",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  star: "M12 4l2.5 5.2 5.7.8-4.1 4 1 5.6-5.1-2.7-5.1 2.7 1-5.6-4.1-4 5.7-.8z",
  retry: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  branch: "M7 5v14M7 15c0-5 10-2 10-8M5 5h4M5 19h4M15 7h4",
  layers: "M12 4l9 5-9 5-9-5zM4 13.5l8 4.5 8-4.5",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9h.01",
  memory: "M7 4h10v16l-5-4-5 4z",
  skill: "M5 5h6v6H5zM13 13h6v6h-6zM16 4v6M13 7h6M5 16h6",
  chat: "M4 5h16v11H9l-5 4z",
  pencil: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  dots: "M6 12h.01M12 12h.01M18 12h.01",
  warning: "M12 4l9 16H3zM12 10v4M12 17h.01",
  check: "M5 13l4 4L19 7",
  down: "M12 5v14M6 13l6 6 6-6",
  right: "M9 6l6 6-6 6",
  left: "M15 6l-6 6 6 6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  auto: "M4 5h16v11H4zM9 20h6M12 16v4",
  key: "M15 5a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 12l-8 8M7 17l2 2",
  leave: "M10 5H5v14h5M14 8l4 4-4 4M18 12H9",
  tool: "M14 6a4 4 0 0 0-5 5l-5 5 3 3 5-5a4 4 0 0 0 5-5l-2.5 2.5-2.5-2.5z",
  compare: "M9 4v16M15 4v16M4 8h5M15 8h5M4 16h5M15 16h5",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  help: "M9 9a3 3 0 1 1 4 2.8c-.8.4-1 1-1 2.2M12 18h.01",
  globe: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM4 12h16M12 4c3 3 3 13 0 16M12 4c-3 3-3 13 0 16",
  file: "M7 4h7l4 4v12H7zM14 4v4h4",
};
const SPACE = "http://www.w3.org/2000/svg";

export function shape(tag, options = {}, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(options)) if (value !== undefined && value !== null) node.setAttribute(name, String(value));
  for (const child of children.flat()) if (child) node.append(child);
  return node;
}

export function icon(name) {
  return shape("svg", { viewBox: "0 0 24 24", class: `icon icon-${name}`, "aria-hidden": "true", focusable: "false" }, shape("path", { d: SHAPES[name] || "" }));
}
