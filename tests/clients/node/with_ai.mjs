// Vercel's AI SDK with its provider for OpenAI-compatible services, as its documentation says to use it. It has no list of models.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { CHOICE, KEY, MODEL, QUESTION, TOO_LONG, WEATHER, failure, run } from "./steps.mjs";

function modelAt(url, { name = MODEL, apiKey = KEY } = {}) {
  const options = { name: "serving", baseURL: `${url}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true };
  return createOpenAICompatible(options)(name);
}

const asked = { prompt: QUESTION, maxOutputTokens: 8, temperature: 0 };
const counts = (usage) => ({ prompt: usage.inputTokens, output: usage.outputTokens });
const described = (error) => ({ status: error.statusCode, code: error.data.error.code, message: error.message });
const { name, description, schema, answer } = WEATHER;
const withTools = {
  prompt: QUESTION,
  tools: { [name]: tool({ description, inputSchema: schema, execute: answer }) },
  stopWhen: stepCountIs(3),
};

await run({
  async chat(url) {
    const { text, finishReason, usage } = await generateText({ model: modelAt(url), ...asked });
    return { text, finish: finishReason, ...counts(usage) };
  },
  async stream(url) {
    const result = streamText({ model: modelAt(url), ...asked });
    const seen = { text: "", pieces: 0 };
    for await (const piece of result.textStream) {
      seen.text += piece;
      seen.pieces += 1;
    }
    return { ...seen, finish: await result.finishReason, ...counts(await result.usage) };
  },
  async structured(url) {
    const output = Output.object({ schema: CHOICE });
    return (await generateText({ model: modelAt(url), ...asked, maxOutputTokens: 200, output })).output;
  },
  async tools(url) {
    return (await generateText({ model: modelAt(url), ...withTools })).text;
  },
  streamed_tools: (url) => streamText({ model: modelAt(url), ...withTools }).text,
  bad_request: (url) => failure(() => generateText({ model: modelAt(url), prompt: TOO_LONG }), described),
  wrong_key: (url) => failure(() => generateText({ model: modelAt(url, { apiKey: "sk-wrong" }), ...asked }), described),
  unknown_model: (url) => failure(() => generateText({ model: modelAt(url, { name: "nope" }), ...asked }), described),
  async leave(url) {
    const control = new AbortController();
    const result = streamText({ model: modelAt(url), ...asked, maxOutputTokens: 2000, abortSignal: control.signal });
    for await (const _ of result.textStream) control.abort();
  },
  async retry(url) {
    return (await generateText({ model: modelAt(url), ...asked })).text;
  },
});
