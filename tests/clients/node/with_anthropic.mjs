// @anthropic-ai/sdk, as its documentation says to use it.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { CHOICE, KEY, MODEL, QUESTION, TOO_LONG, WEATHER, failure, run } from "./steps.mjs";

const connect = (baseURL, apiKey = KEY) => new Anthropic({ baseURL, apiKey });
const messages = [{ role: "user", content: QUESTION }];
const asked = { model: MODEL, messages, max_tokens: 8, temperature: 0 };
const described = (error) => ({ status: error.status, code: error.error.error.type, message: error.message });
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

function counts({ input_tokens, cache_creation_input_tokens, cache_read_input_tokens, output_tokens }) {
  const prompt = input_tokens + (cache_creation_input_tokens ?? 0) + (cache_read_input_tokens ?? 0);
  return { prompt, output: output_tokens };
}

function runTools(url, options = {}) {
  const { name, description, schema, answer } = WEATHER;
  const tool = betaZodTool({ name, description, inputSchema: schema, run: answer });
  return connect(url).beta.messages.toolRunner({ model: MODEL, messages, max_tokens: 100, tools: [tool], ...options });
}

await run({
  async models(url) {
    const names = [];
    for await (const model of connect(url).models.list()) names.push(model.id);
    return names;
  },
  async model(url) {
    const { id, type, display_name, created_at } = await connect(url).models.retrieve(MODEL);
    return { id, type, display_name, dated: !Number.isNaN(Date.parse(created_at)) };
  },
  async chat(url) {
    const message = await connect(url).messages.create(asked);
    return { text: textOf(message), finish: message.stop_reason, ...counts(message.usage) };
  },
  async stream(url) {
    const stream = connect(url).messages.stream(asked);
    const seen = { text: "", pieces: 0 };
    stream.on("text", (piece) => {
      seen.text += piece;
      seen.pieces += 1;
    });
    const message = await stream.finalMessage();
    return { ...seen, finish: message.stop_reason, ...counts(message.usage) };
  },
  async structured(url) {
    const format = zodOutputFormat(CHOICE);
    const message = await connect(url).messages.parse({ ...asked, max_tokens: 200, output_config: { format } });
    return message.parsed_output;
  },
  async tools(url) {
    return textOf(await runTools(url).runUntilDone());
  },
  async streamed_tools(url) {
    let last;
    for await (const stream of runTools(url, { stream: true })) last = await stream.finalMessage();
    return textOf(last);
  },
  bad_request: (url) =>
    failure(
      () => connect(url).messages.create({ ...asked, messages: [{ role: "user", content: TOO_LONG }] }),
      described,
    ),
  wrong_key: (url) => failure(() => connect(url, "sk-wrong").messages.create(asked), described),
  unknown_model: (url) => failure(() => connect(url).messages.create({ ...asked, model: "nope" }), described),
  wrong_key_for_models: (url) => failure(() => connect(url, "sk-wrong").models.list(), described),
  unknown_card: (url) => failure(() => connect(url).models.retrieve("nope"), described),
  async leave(url) {
    const stream = await connect(url).messages.create({ ...asked, max_tokens: 2000, stream: true });
    for await (const event of stream) if (event.type === "content_block_delta") break; // leaving the loop aborts the request
  },
  async retry(url) {
    return textOf(await connect(url).messages.create(asked));
  },
});
