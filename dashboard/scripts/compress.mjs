// Writes a .br file next to each file of dist that a client may take compressed.
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants } from "node:zlib";

const COMPRESSED = /\.(js|css|html|svg|txt|json)$/;

/** @param {string} folder */
function compress(folder) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) compress(path);
    else if (COMPRESSED.test(name)) {
      const content = readFileSync(path);
      const size = { [constants.BROTLI_PARAM_SIZE_HINT]: content.length, [constants.BROTLI_PARAM_QUALITY]: 11 };
      writeFileSync(`${path}.br`, brotliCompressSync(content, { params: size }));
    }
  }
}

compress(new URL("../dist", import.meta.url).pathname);
