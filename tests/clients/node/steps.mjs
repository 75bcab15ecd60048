// What the Node programs share. A program takes lines of JSON, [the gateway's address, the name of a step], and answers each with
// one line: what the step saw. The steps and what they give are listed in tests/clients/programs.py.
import { createInterface } from "node:readline";
import { z } from "zod";

export const MODEL = "tiny";
export const KEY = "sk-test";
export const QUESTION = "What is the capital of France?";
export const TOO_LONG = "x".repeat(5000);
export const WEATHER = {
  name: "weather",
  description: "The weather in a city",
  schema: z.object({ city: z.string() }),
  answer: ({ city }) => `rain in ${city}`,
};
export const CHOICE = z.object({ yes: z.boolean(), size: z.enum(["small", "large"]) });

export async function run(steps) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [url, step] = JSON.parse(line);
    try {
      console.log(JSON.stringify({ seen: (await steps[step](url)) ?? null }));
    } catch (error) {
      console.log(JSON.stringify({ failed: error.stack ?? String(error) }));
    }
  }
}

// The error that a call ends with, as the client shows it.
export async function failure(call, describe) {
  try {
    await call();
  } catch (error) {
    return { kind: error.constructor.name, ...describe(error) };
  }
  throw new Error("the call did not fail");
}
