import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

/** Address of the installation that the development server passes API requests to. */
const installation = process.env.CYNODE_URL ?? "http://127.0.0.1:12080";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  build: {
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
});
