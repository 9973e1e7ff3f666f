"""OpenAI's client for Python against `pi serve`; scripts/test_clients runs this."""

import asyncio
import os
import time
import typing
import unittest
import urllib.request

import openai
import pydantic

URL, KEY, EMBEDDED = os.environ["PI_URL"], os.environ["PI_KEY"], os.environ["PI_EMBEDDED"]
# strict: an answer whose fields are not as the client's types say is an exception
HOW = dict(api_key=KEY, base_url=URL + "/v1", max_retries=0, timeout=60, _strict_response_validation=True)
client = openai.OpenAI(**HOW)
# but for one: the types have no null for the reason in a chunk of plain text, which OpenAI sends until the last
lenient = openai.OpenAI(**dict(HOW, _strict_response_validation=False))
PROMPT = "Once upon a time"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
# longer than a test waits
LONG = dict(model="demo", prompt=PROMPT, max_tokens=4000, extra_body={"ignore_eos": True})


def metric(name):
    request = urllib.request.Request(URL + "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as response:
        lines = response.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(name + " ")))


def is_idle(seconds=10):
    end = time.monotonic() + seconds
    while metric("pi_requests_running") + metric("pi_requests_waiting"):
        assert time.monotonic() < end, "a slot is still taken"
        time.sleep(0.02)


class Models(unittest.TestCase):
    def test_models_are_listed_and_found_by_name(self):
        (model,) = client.models.list().data
        self.assertEqual((model.id, model.object), ("demo", "model"))
        self.assertEqual(client.models.retrieve("demo"), model)
        with self.assertRaises(openai.NotFoundError) as raised:
            client.models.retrieve("gpt-x")
        self.assertEqual(raised.exception.code, "model_not_found")


class Chat(unittest.TestCase):
    def ask(self, **more):
        return client.chat.completions.create(**dict(dict(model="demo", messages=MESSAGES, temperature=0, max_completion_tokens=24), **more))

    def test_an_answer_has_a_message_a_reason_and_usage(self):
        answer = self.ask()
        (choice,) = answer.choices
        self.assertEqual((choice.index, choice.message.role), (0, "assistant"))
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertTrue(0 < usage.completion_tokens <= 24)
        self.assertEqual(answer.model, "demo")
        again = self.ask()
        self.assertEqual(again.choices[0].message.content, choice.message.content)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertNotEqual(again.id, answer.id)

    def test_a_stream_is_the_same_text_and_ends_with_usage(self):
        whole = self.ask()
        chunks = list(self.ask(stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], whole.usage.completion_tokens))
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))
        self.assertEqual({chunk.id for chunk in chunks}, {chunks[0].id})
        self.assertTrue(all(chunk.usage is None for chunk in self.ask(stream=True)))

    def test_the_clients_own_collector_makes_a_whole_answer_of_a_stream(self):
        text = self.ask().choices[0].message.content
        stop = text[len(text) // 2 :][:5]
        how = dict(model="demo", messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2)
        with client.chat.completions.stream(**how, stop=stop) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertTrue({"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds, kinds)
        self.assertEqual(final.choices[0].message.content, text[: text.index(stop)])
        self.assertGreater(len(final.choices[0].logprobs.content), 3)
        with client.chat.completions.stream(**how, max_tokens=5) as stream, self.assertRaises(openai.LengthFinishReasonError):
            stream.get_final_completion()

    def test_log_probabilities_are_those_of_the_text(self):
        choice = self.ask(logprobs=True, top_logprobs=3).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual(b"".join(bytes(t.bytes) for t in tokens).decode(), choice.message.content)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual([t.logprob for t in token.top_logprobs], sorted((t.logprob for t in token.top_logprobs), reverse=True))
            self.assertEqual((len(token.top_logprobs), token.top_logprobs[0].token), (3, token.token), "temperature 0")

    def test_settings_are_obeyed(self):
        text = self.ask(max_completion_tokens=60).choices[0].message.content
        stop = text[len(text) // 2 :][:5]
        stopped = self.ask(max_completion_tokens=60, stop=[stop]).choices[0]
        self.assertEqual((stopped.message.content, stopped.finish_reason), (text[: text.index(stop)], "stop"))
        one, two = (self.ask(temperature=1, seed=7).choices[0].message.content for _ in range(2))
        self.assertEqual(one, two)
        parts = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
        self.assertTrue(self.ask(messages=parts, top_p=0.9, presence_penalty=0.5, n=1, user="me").choices)


class City(pydantic.BaseModel):
    name: typing.Literal["Rome", "Zürich", "東京"]


class Person(pydantic.BaseModel):
    """Finds somebody."""

    name: str = pydantic.Field(min_length=1, max_length=8)
    age: int = pydantic.Field(ge=0, le=150)
    home: City
    work: typing.Optional[City]


class Forms(unittest.TestCase):
    # what the model says is by chance, but it has the form
    how = dict(model="demo", messages=MESSAGES, max_tokens=300, temperature=1)
    named = {"type": "function", "function": {"name": "find_person"}}
    tools = [openai.pydantic_function_tool(Person, name="find_person")]

    def test_an_answer_is_an_object_of_the_programs_own_class(self):
        for seed in range(3):
            how = dict(self.how, response_format=Person, seed=seed)
            choice = client.chat.completions.parse(**how).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            self.assertIsInstance(choice.message.parsed, Person)
            self.assertEqual(choice.message.parsed, Person.model_validate_json(choice.message.content))
            with client.chat.completions.stream(**how) as stream:
                kinds = {event.type for event in stream}
                final = stream.get_final_completion()
            self.assertTrue({"content.delta", "content.done"} <= kinds, kinds)
            self.assertEqual(final.choices[0].message.parsed, choice.message.parsed)

    def test_a_function_that_must_be_called_is_with_arguments_of_its_class(self):
        for seed in range(3):
            how = dict(self.how, tools=self.tools, tool_choice=self.named, seed=seed)
            choice = client.chat.completions.parse(**how).choices[0]
            self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
            (call,) = choice.message.tool_calls
            self.assertEqual((call.type, call.function.name), ("function", "find_person"))
            self.assertIsInstance(call.function.parsed_arguments, Person)
            with client.chat.completions.stream(**how) as stream:
                events = list(stream)
                final = stream.get_final_completion()
            deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
            self.assertGreater(len(deltas), 3)
            self.assertEqual("".join(event.arguments_delta for event in deltas), call.function.arguments)
            self.assertEqual(final.choices[0].finish_reason, "tool_calls")
            (streamed,) = final.choices[0].message.tool_calls
            self.assertEqual(streamed.function.parsed_arguments, call.function.parsed_arguments)
            self.assertTrue(streamed.id)

    def test_what_came_of_a_call_goes_back_to_the_model(self):
        how = dict(self.how, tools=self.tools, parallel_tool_calls=False)
        message = client.chat.completions.create(**how, tool_choice="required").choices[0].message
        (call,) = message.tool_calls
        history = MESSAGES + [message, {"role": "tool", "tool_call_id": call.id, "content": "It is the king."}]
        answer = client.chat.completions.create(**dict(how, messages=history, tool_choice="none", max_tokens=8))
        self.assertTrue(answer.choices[0].message.content)
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_a_wrong_schema_is_a_bad_request_that_names_it(self):
        schema = {"name": "x", "strict": True, "schema": {"not": {}}}
        function = {"name": "x", "strict": True, "parameters": {"properties": {"a": {"type": "thing"}}}}
        for more, param in [
            ({"response_format": {"type": "json_schema", "json_schema": schema}}, "response_format.json_schema.schema"),
            ({"tools": [{"type": "function", "function": function}]}, "tools[0].function.parameters"),
            ({"tools": self.tools, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ]:
            with self.assertRaises(openai.BadRequestError) as raised:
                client.chat.completions.create(**self.how, **more)
            self.assertEqual(raised.exception.param, param)


class Completions(unittest.TestCase):
    def ask(self, **more):
        return client.completions.create(**dict(dict(model="demo", prompt=PROMPT, temperature=0, max_tokens=20), **more))

    def test_text_stream_and_log_probabilities_agree(self):
        whole = self.ask(logprobs=2)
        choice = whole.choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual([len(t) for t in choice.logprobs.top_logprobs], [2] * 20)
        self.assertEqual((choice.finish_reason, whole.usage.completion_tokens), ("length", 20))
        how = dict(model="demo", prompt=PROMPT, temperature=0, max_tokens=20)
        chunks = list(lenient.completions.create(**how, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.text for chunk in chunks for c in chunk.choices), choice.text)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)

    def test_a_prompt_may_be_tokens(self):
        self.assertEqual(self.ask(prompt=[1, 5, 9]).usage.prompt_tokens, 3)


class Errors(unittest.TestCase):
    def refused(self, kind, **more):
        with self.assertRaises(kind) as raised:
            client.chat.completions.create(**dict(dict(model="demo", messages=MESSAGES, max_tokens=2), **more))
        return raised.exception

    def test_wrong_fields_are_bad_requests_that_name_them(self):
        for more, param in [
            ({"temperature": -1}, "temperature"),
            ({"extra_body": {"temperature": "hot"}}, "temperature"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
            ({"n": 2}, "n"),
            ({"logit_bias": {"99999999": 5}}, "logit_bias"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"extra_body": {"max_tokens": "many"}}, "max_tokens"),
        ]:
            error = self.refused(openai.BadRequestError, **more)
            self.assertEqual((error.status_code, error.param, error.type), (400, param, "invalid_request_error"))
            self.assertIn(param, error.message)
            error = self.refused(openai.BadRequestError, stream=True, **more)
            self.assertEqual(error.param, param)

    def test_a_prompt_that_is_too_long_has_a_code_of_its_own(self):
        error = self.refused(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 6000}])
        self.assertEqual((error.code, error.param), ("context_length_exceeded", "messages"))

    def test_a_wrong_key_is_an_authentication_error(self):
        with self.assertRaises(openai.AuthenticationError) as raised:
            client.with_options(api_key="wrong").models.list()
        self.assertEqual(raised.exception.code, "invalid_api_key")

    def test_what_is_not_there_is_said(self):
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve("x")
        with self.assertRaises(openai.BadRequestError):
            client.embeddings.create(model="demo", input="x")

    def test_too_many_requests_are_rate_limit_errors_and_a_patient_client_gets_in(self):
        streams = [lenient.completions.create(stream=True, **LONG) for _ in range(2)]  # both slots
        wait = client.with_options(max_retries=9)

        async def rest():
            many = openai.AsyncOpenAI(**HOW)
            queued = [asyncio.create_task(many.completions.create(**dict(LONG, max_tokens=1))) for _ in range(2)]
            while metric("pi_requests_waiting") < 2:
                await asyncio.sleep(0.01)
            with self.assertRaises(openai.RateLimitError) as raised:
                await many.completions.create(**LONG)
            self.assertEqual(raised.exception.code, "queue_full")
            self.assertGreaterEqual(int(raised.exception.response.headers["retry-after"]), 1)
            patient = asyncio.create_task(asyncio.to_thread(wait.completions.create, **dict(LONG, max_tokens=1)))
            await asyncio.sleep(0.2)
            [stream.close() for stream in streams]
            await asyncio.gather(*queued, patient)
            await many.close()

        asyncio.run(rest())
        is_idle()


class Leaving(unittest.TestCase):
    def test_cancelled_tasks_closed_streams_and_timeouts_free_their_slots(self):
        async def leave():
            many = openai.AsyncOpenAI(**dict(HOW, _strict_response_validation=False))
            whole = asyncio.create_task(many.completions.create(**LONG))
            stream = await many.completions.create(stream=True, **LONG)
            async for _ in stream:
                break
            while metric("pi_requests_running") < 2:
                await asyncio.sleep(0.01)
            whole.cancel()
            await stream.close()
            with self.assertRaises(asyncio.CancelledError):
                await whole
            await many.close()

        asyncio.run(leave())
        is_idle(5)
        with self.assertRaises(openai.APITimeoutError):
            client.with_options(timeout=0.05).completions.create(**LONG)
        is_idle(5)
        self.assertGreaterEqual(metric("pi_requests_cancelled_total"), 3)
        self.assertTrue(client.completions.create(model="demo", prompt="a", max_tokens=2).choices)

    def test_many_at_once_get_the_answers_they_would_get_alone(self):
        def body(i):
            return dict(model="demo", prompt=f"{PROMPT} {i}", temperature=0, max_tokens=12)

        alone = [client.completions.create(**body(i)).choices[0].text for i in range(4)]

        async def together():
            many = openai.AsyncOpenAI(**HOW)
            answers = await asyncio.gather(*(many.completions.create(**body(i)) for i in range(4)))
            await many.close()
            return [answer.choices[0].text for answer in answers]

        self.assertEqual(asyncio.run(together()), alone)


class Embedded(unittest.TestCase):
    def test_the_router_works_inside_another_program_beside_its_own_routes(self):
        def get(path):
            with urllib.request.urlopen(EMBEDDED + path) as response:
                return response.read().decode()

        end = time.monotonic() + 60
        inside = openai.OpenAI(**dict(HOW, base_url=EMBEDDED + "/llm/v1"))
        while True:
            try:
                (model,) = inside.models.list().data
                break
            except openai.InternalServerError as error:  # 503 while the model is loaded
                self.assertEqual((error.status_code, time.monotonic() < end), (503, True))
                time.sleep(0.1)
        self.assertEqual(model.id, "storyteller")
        answer = inside.chat.completions.create(model="storyteller", messages=MESSAGES, max_tokens=5)
        self.assertEqual(answer.usage.completion_tokens, 5)
        self.assertIn("a program of mine", get("/"))
        self.assertTrue(get("/story/Ada").startswith("Once upon a time Ada"))
        self.assertEqual(get("/llm/health"), '{"status":"ok"}')


if __name__ == "__main__":
    unittest.main()
