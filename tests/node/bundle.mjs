// Prints a program as one module for browsers, its npm packages included: `bundle.mjs FILE`.
import { rolldown } from "rolldown";

const bundle = await rolldown({ input: process.argv[2], platform: "browser", logLevel: "silent" });
const { output } = await bundle.generate({ format: "esm", codeSplitting: false });
process.stdout.write(output[0].code, () => process.exit(0));
