// OpenAI's client for JavaScript against `pi serve`; scripts/test_clients runs this with node's own test runner.

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const { PI_URL: url, PI_KEY: apiKey } = process.env;
const client = new OpenAI({ apiKey, baseURL: url + "/v1", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "Once upon a time" }];
const chat = more => client.chat.completions.create({ model: "demo", messages, temperature: 0, max_tokens: 24, ...more });
// longer than a test waits
const long = { model: "demo", prompt: "Once upon a time", max_tokens: 4000, ignore_eos: true };

async function metric(name) {
  const text = await (await fetch(url + "/metrics", { headers: { Authorization: `Bearer ${apiKey}` } })).text();
  return +text.split("\n").find(line => line.startsWith(name + " ")).split(" ")[1];
}

async function idle() {
  for (const end = Date.now() + 10_000; (await metric("pi_requests_running")) + (await metric("pi_requests_waiting")); ) {
    assert.ok(Date.now() < end, "a slot is still taken");
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("models are listed and found by name", async () => {
  assert.deepEqual((await client.models.list()).data.map(model => model.id), ["demo"]);
  assert.equal((await client.models.retrieve("demo")).object, "model");
  await assert.rejects(client.models.retrieve("gpt-x"), OpenAI.NotFoundError);
});

test("a chat and its stream are the same text", async () => {
  const whole = await chat(), [choice] = whole.choices;
  assert.ok(choice.message.content.length > 0);
  assert.equal(choice.message.role, "assistant");
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  const chunks = await collect(await chat({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.map(chunk => chunk.choices[0]?.delta.content ?? "").join(""), choice.message.content);
  assert.equal(chunks.at(-2).choices[0].finish_reason, choice.finish_reason);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  assert.ok(chunks.slice(0, -1).every(chunk => chunk.usage === null));
});

test("the client's own collector makes a whole answer of a stream", async () => {
  const stream = client.chat.completions.stream({ model: "demo", messages, temperature: 0, max_tokens: 24, stream_options: { include_usage: true } });
  let text = "";
  stream.on("content", piece => { text += piece; });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, (await chat()).choices[0].message.content);
  assert.equal(text, final.choices[0].message.content);
  assert.equal((await stream.totalUsage()).completion_tokens, 24);
});

// a person: what the model says is by chance, but it has this form
const person = {
  type: "object", additionalProperties: false, required: ["name", "age", "home"],
  properties: { name: { type: "string", minLength: 1, maxLength: 8 }, age: { type: "integer", minimum: 0, maximum: 150 }, home: { $ref: "#/$defs/a~1city" } },
  $defs: { "a/city": { enum: ["Rome", "Zürich", "東京"] } },
};
const tools = [{ type: "function", function: { name: "find_person", description: "Finds somebody", parameters: person, strict: true } }];
const named = { type: "function", function: { name: "find_person" } };
const chance = { model: "demo", messages, temperature: 1, max_tokens: 300 };

function assertPerson(value) {
  assert.deepEqual(Object.keys(value).sort(), ["age", "home", "name"]);
  assert.ok(Number.isInteger(value.age) && value.age >= 0 && value.age <= 150 && [...value.name].length <= 8);
  assert.ok(person.$defs["a/city"].enum.includes(value.home));
}

test("an answer has the form of a schema, whole and streamed", async () => {
  const format = { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } };
  for (const seed of [0, 1, 2]) {
    const body = { ...chance, response_format: format, seed };
    const [choice] = (await client.chat.completions.parse(body)).choices;
    assert.equal(choice.finish_reason, "stop");
    assertPerson(choice.message.parsed);
    const final = await client.chat.completions.stream(body).finalChatCompletion();
    assert.equal(final.choices[0].message.content, choice.message.content);
  }
});

test("a function that must be called is, whole and streamed", async () => {
  for (const seed of [0, 1, 2]) {
    const body = { ...chance, tools, tool_choice: named, seed };
    const [choice] = (await client.chat.completions.parse(body)).choices, [call] = choice.message.tool_calls;
    assert.deepEqual([choice.finish_reason, choice.message.content, call.function.name], ["tool_calls", null, "find_person"]);
    assertPerson(call.function.parsed_arguments);
    let text = "";
    const stream = client.chat.completions.stream(body).on("tool_calls.function.arguments.delta", delta => { text += delta.arguments_delta; });
    const [streamed] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    assert.deepEqual([streamed.function.arguments, text], [call.function.arguments, call.function.arguments]);
    assert.ok(streamed.id.length > 0);
  }
});

test("the client's own runner calls the function", async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const tool = { type: "function", function: { name: "find_person", description: "", parameters: person, parse: JSON.parse, function: who => { seen.push(who); return "the king"; } } };
    const runner = client.chat.completions.runTools({ ...chance, stream, tools: [tool], tool_choice: named, seed: 5 });
    assert.equal(await runner.finalFunctionToolCallResult(), "the king");
    assert.equal(seen.length, 1);
    assertPerson(seen[0]);
  }
});

test("log-probabilities are those of the text", async () => {
  const [choice] = (await chat({ logprobs: true, top_logprobs: 2 })).choices, tokens = choice.logprobs.content;
  assert.equal(Buffer.from(tokens.flatMap(token => token.bytes)).toString(), choice.message.content);
  assert.ok(tokens.every(token => token.logprob <= 0 && token.top_logprobs.length === 2));
});

test("completions and their stream are the same text", async () => {
  const body = { model: "demo", prompt: "The little dog", temperature: 0, max_tokens: 16, logprobs: 1 };
  const whole = await client.completions.create(body);
  assert.equal(whole.choices[0].logprobs.tokens.join(""), whole.choices[0].text);
  const chunks = await collect(await client.completions.create({ ...body, stream: true }));
  assert.equal(chunks.map(chunk => chunk.choices[0].text).join(""), whole.choices[0].text);
});

test("what is wrong is an error of the right class that names the field", async () => {
  const wrong = [[{ temperature: "hot" }, "temperature"], [{ messages: [] }, "messages"], [{ n: 2 }, "n"], [{ max_tokens: -1 }, "max_tokens"]];
  for (const [more, param] of wrong) {
    for (const stream of [false, true]) {
      await assert.rejects(chat({ ...more, stream }), error => error instanceof OpenAI.BadRequestError && error.param === param && error.status === 400);
    }
  }
  await assert.rejects(chat({ messages: [{ role: "user", content: "word ".repeat(6000) }] }), { code: "context_length_exceeded" });
  await assert.rejects(client.withOptions({ apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
  await assert.rejects(client.embeddings.create({ model: "demo", input: "x" }), OpenAI.BadRequestError);
});

test("too many requests are rate limit errors", async () => {
  const leave = new AbortController();
  const many = [1, 2, 3, 4].map(() => client.completions.create(long, { signal: leave.signal }).catch(error => error));
  for (const end = Date.now() + 10_000; (await metric("pi_requests_waiting")) < 2; ) assert.ok(Date.now() < end);
  await assert.rejects(client.completions.create(long), error => error instanceof OpenAI.RateLimitError && +error.headers.get("retry-after") >= 1);
  leave.abort();
  for (const error of await Promise.all(many)) assert.ok(error instanceof OpenAI.APIUserAbortError);
  await idle();
});

test("an aborted request, a stream that is left and a timeout free their slots", async () => {
  const before = await metric("pi_requests_cancelled_total"), leave = new AbortController();
  const whole = client.completions.create(long, { signal: leave.signal });
  for await (const chunk of await client.completions.create({ ...long, stream: true })) { assert.ok(chunk.choices); break; }
  leave.abort();
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await assert.rejects(client.completions.create(long, { timeout: 50 }), OpenAI.APIConnectionTimeoutError);
  await idle();
  assert.ok((await metric("pi_requests_cancelled_total")) >= before + 3);
  assert.equal((await chat({ max_tokens: 2 })).usage.completion_tokens, 2);
});
