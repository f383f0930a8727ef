// Prints the JSON Schema of the events of protocol 1.0, made of the validators in `@ag-ui/core`. The package contains no
// JSON Schema of its own. Unlike the validators, which let unknown members pass, the schema refuses them.
//
// Usage, in a folder where the packages are installed: node schema.mjs > events-1.0.json

import { createRequire } from "node:module";

const client = createRequire(import.meta.url).resolve("client-1");
const near = createRequire(client);
const { EventSchema } = near("@ag-ui/core/schemas");
const { z } = createRequire(near.resolve("@ag-ui/core/schemas"))("zod/v4");

const schema = z.toJSONSchema(EventSchema, {
  unrepresentable: "any",
  io: "input",
  reused: "ref",
  override: ({ zodSchema, jsonSchema }) => {
    const { type } = zodSchema.def;
    if (type === "object" && !zodSchema.meta()?.specOpen) jsonSchema.additionalProperties = false;
    if (type === "custom") jsonSchema.type = "object";
  },
});
console.log(JSON.stringify(schema));
