// Builds one of the front ends into `dist` in its folder.
//
//   cd examples/front_ends/use_chat && npm ci && node ../build.mjs
//   cargo run --example web_chat --features web -- --page examples/front_ends/use_chat/dist
//
// Arguments: the folder with `app.jsx` and `node_modules`, and the folder of the results. Both can be left out.

import { mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const modules = path.resolve(process.argv[2] ?? ".");
const dist = path.resolve(process.argv[3] ?? "dist");
const app = path.resolve(process.argv[4] ?? modules, "app.jsx");
const { buildSync } = createRequire(path.join(modules, "x.js"))("esbuild");

mkdirSync(dist, { recursive: true });
buildSync({
  entryPoints: [app],
  outfile: path.join(dist, "app.js"),
  bundle: true,
  format: "esm",
  jsx: "automatic",
  minify: true,
  nodePaths: [path.join(modules, "node_modules")],
  define: { "process.env.NODE_ENV": '"production"' },
  loader: { ".woff": "dataurl", ".woff2": "dataurl", ".ttf": "dataurl" },
});
writeFileSync(
  path.join(dist, "index.html"),
  `<!doctype html>
<html lang="en">
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width">
  <title>omni-agent</title>
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="app.css">
  <div id="root"></div>
  <script type="module" src="app.js"></script>
</html>
`,
);
