import { existsSync, readFileSync } from "node:fs";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** Address of the installation that the development server passes API requests to. */
const installation = process.env.CYNODE_URL ?? "http://127.0.0.1:12080";

/** The recording that the demo shows. */
const recording = process.env.CYNODE_RECORDING ?? "recording.json";

/** The demo loads its own files only. A static host sends no header of ours, so the page names its policy itself. */
const DEMO_POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'";

/** Puts the recording beside the page of the demo, and the policy into it. */
function shipRecording(): Plugin {
  return {
    name: "cynode-recording",
    apply: "build",
    buildStart() {
      if (!existsSync(recording)) this.error(`${recording} does not exist; scripts/record-console-demo makes it`);
    },
    transformIndexHtml: () => [
      {
        tag: "meta",
        attrs: { "http-equiv": "Content-Security-Policy", content: DEMO_POLICY },
        injectTo: "head-prepend",
      },
    ],
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "recording.json", source: readFileSync(recording, "utf8") });
    },
  };
}

export default defineConfig(({ mode }) => {
  const isDemo = mode === "demo";
  return {
    // The demo is served from any folder of any host.
    base: isDemo ? "./" : "/",
    plugins: [react(), tailwindcss(), ...(isDemo ? [shipRecording()] : [])],
    define: {
      __DEMO__: JSON.stringify(isDemo),
      __INSTALL_URL__: JSON.stringify(process.env.CYNODE_INSTALL_URL ?? ""),
    },
    build: {
      outDir: isDemo ? "dist-demo" : "dist",
      target: "es2023",
      modulePreload: { polyfill: false },
      // Everything is a file of its own: the content security policy allows no data: scripts or styles.
      assetsInlineLimit: 0,
      reportCompressedSize: false,
      manifest: "manifest.json",
    },
    // The registries of settings, preferences and policies are read from the documentation.
    server: { proxy: { "/v1": { target: installation, changeOrigin: false } }, fs: { allow: [".", "../docs"] } },
    test: { include: ["tests/**/*.test.ts", "tests/**/*.test.tsx"], environment: "node" },
  };
});
