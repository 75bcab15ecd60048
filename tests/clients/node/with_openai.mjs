// openai for Node, as its documentation says to use it.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { CHOICE, KEY, MODEL, QUESTION, TOO_LONG, WEATHER, failure, run } from "./steps.mjs";

const connect = (url, apiKey = KEY) => new OpenAI({ baseURL: `${url}/v1`, apiKey });
const messages = [{ role: "user", content: QUESTION }];
const asked = { model: MODEL, messages, max_tokens: 8, temperature: 0 };
const counts = (usage) => ({ prompt: usage.prompt_tokens, output: usage.completion_tokens });
const described = (error) => ({ status: error.status, code: error.code, message: error.message });

function runTools(url, options = {}) {
  const { name, description, schema, answer } = WEATHER;
  const tool = zodFunction({ name, description, parameters: schema, function: answer });
  return connect(url).chat.completions.runTools({ model: MODEL, messages, tools: [tool], ...options });
}

await run({
  async models(url) {
    const names = [];
    for await (const model of connect(url).models.list()) names.push(model.id);
    return names;
  },
  async chat(url) {
    const { choices, usage } = await connect(url).chat.completions.create(asked);
    return { text: choices[0].message.content, finish: choices[0].finish_reason, ...counts(usage) };
  },
  async stream(url) {
    const stream = await connect(url).chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    const seen = { text: "", pieces: 0 };
    for await (const { choices, usage } of stream) {
      if (choices[0]?.delta.content) {
        seen.text += choices[0].delta.content;
        seen.pieces += 1;
      }
      seen.finish ??= choices[0]?.finish_reason ?? undefined;
      if (usage) Object.assign(seen, counts(usage));
    }
    return seen;
  },
  async structured(url) {
    const { choices } = await connect(url).chat.completions.parse({
      ...asked,
      max_tokens: 200,
      response_format: zodResponseFormat(CHOICE, "answer"),
    });
    return choices[0].message.parsed;
  },
  tools: (url) => runTools(url).finalContent(),
  streamed_tools: (url) => runTools(url, { stream: true }).finalContent(),
  bad_request: (url) =>
    failure(
      () => connect(url).chat.completions.create({ model: MODEL, messages: [{ role: "user", content: TOO_LONG }] }),
      described,
    ),
  wrong_key: (url) => failure(() => connect(url, "sk-wrong").chat.completions.create(asked), described),
  unknown_model: (url) => failure(() => connect(url).chat.completions.create({ ...asked, model: "nope" }), described),
  async leave(url) {
    const stream = await connect(url).chat.completions.create({ ...asked, max_tokens: 2000, stream: true });
    for await (const { choices } of stream) if (choices[0].delta.content) break; // leaving the loop aborts the request
  },
  async retry(url) {
    return (await connect(url).chat.completions.create(asked)).choices[0].message.content;
  },
});
