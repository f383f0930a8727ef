// Drives the `Chat` class of `@ai-sdk/react` against a server.
//
// OMNI_SERVER is the address of the server of `tests/web/ai_sdk.rs`. OMNI_MODULES is the folder with the installed
// packages. OMNI_LEVEL is the major version of `ai`: 6 or 7.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

// A busy machine can be slow. Long limits cost nothing while all scenarios succeed.
setTimeout(() => {
  console.log('the test takes longer than ten minutes');
  process.exit(1);
}, 600_000).unref();

const server = process.env.OMNI_SERVER;
const level = Number(process.env.OMNI_LEVEL);
const require = createRequire(join(process.env.OMNI_MODULES, 'package.json'));
const load = name => import(pathToFileURL(require.resolve(name)));
const { Chat } = await load('@ai-sdk/react');
const {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  validateUIMessages,
} = await load('ai');

const api = `${server}/api/chat${level === 6 ? '?ui=6' : ''}`;

/** Returns whether no part waits for the user any more. In version 6, the chat then sends the decisions. */
const isDecided = ({ messages }) => {
  const parts = messages.at(-1)?.parts ?? [];
  return parts.some(part => part.state === 'approval-responded')
    && !parts.some(part => part.state === 'approval-requested');
};
const whenDecided = level === 6 ? isDecided : lastAssistantMessageIsCompleteWithApprovalResponses;

const request = async (method, path, body) => {
  const headers = body === undefined ? {} : { 'content-type': 'application/json' };
  const response = await fetch(`${server}${path}`, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${await response.clone().text()}`);
  return response;
};

const create = async () => (await (await request('POST', '/agent/conversations', {})).json()).id;

const open = async (settings = {}, transport = {}) => {
  const id = settings.id ?? await create();
  return new Chat({ id, transport: new DefaultChatTransport({ api, ...transport }), ...settings });
};

const listed = async id => {
  const path = `/api/chat/${id}/messages${level === 6 ? '?ui=6' : ''}`;
  return (await request('GET', path)).json();
};

const until = async (what, condition) => {
  const end = Date.now() + 120_000;
  while (!await condition()) {
    assert.ok(Date.now() < end, `timeout: ${what}`);
    await new Promise(resolve => setTimeout(resolve, 5));
  }
};

const texts = message => message.parts.filter(part => part.type === 'text').map(part => part.text).join('');
const tools = message => message.parts.filter(part => part.toolCallId !== undefined && part.state !== undefined);
const states = message => tools(message).map(part => part.state);
const answer = chat => chat.messages.findLast(message => message.role === 'assistant');

/** Compares a chat with the list of the server, without the members that only one of them has. */
const sameAsListed = async chat => {
  const known = message => ({
    id: message.id,
    role: message.role,
    text: texts(message),
    states: states(message),
    steps: message.parts.filter(part => part.type === 'step-start').length,
  });
  assert.deepEqual(chat.messages.map(known), (await listed(chat.id)).map(known));
};

const scenarios = {
  async text() {
    const chat = await open();
    await chat.sendMessage({ text: 'hello' });
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(texts(answer(chat)), 'Hello, world.');
    assert.ok(answer(chat).metadata.nodes.length === 2);
    await chat.sendMessage({ text: 'hello' });
    assert.equal(chat.messages.length, 4);
    await sameAsListed(chat);
  },

  async 'a chat with its own id'() {
    const chat = new Chat({ transport: new DefaultChatTransport({ api: api.replace('/api/', '/own/') }) });
    await chat.resumeStream();
    assert.equal(chat.status, 'ready', 'a new chat has nothing to resume');
    for (const count of [2, 4]) {
      await chat.sendMessage({ text: 'hello' });
      assert.equal(chat.status, 'ready', chat.error);
      assert.equal(texts(answer(chat)), 'Hello, world.');
      assert.equal(chat.messages.length, count);
    }
    const path = `/own/chat/${chat.id}/messages${level === 6 ? '?ui=6' : ''}`;
    const stored = await (await request('GET', path)).json();
    assert.deepEqual(chat.messages.map(texts), stored.map(texts));
    assert.deepEqual(chat.messages.map(message => message.id), stored.map(message => message.id));
  },

  async reasoning() {
    const chat = await open();
    await chat.sendMessage({ text: 'think' });
    const reasoning = answer(chat).parts.find(part => part.type === 'reasoning');
    assert.deepEqual([reasoning.text, reasoning.state], ['Hmm.', 'done']);
    await sameAsListed(chat);
  },

  async tools() {
    const chat = await open({ sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls });
    await chat.sendMessage({ text: 'clock' });
    const [part] = tools(answer(chat));
    assert.deepEqual([part.type, part.state, part.output], ['tool-clock', 'output-available', { time: '12:00' }]);
    assert.equal(texts(answer(chat)), 'Done.');
    await sameAsListed(chat);
  },

  async 'two approvals with an automatic use'() {
    const chat = await open({ sendAutomaticallyWhen: whenDecided });
    await chat.sendMessage({ text: 'delete' });
    assert.equal(chat.status, 'ready', chat.error);
    const waiting = tools(answer(chat)).filter(part => part.state === 'approval-requested');
    assert.deepEqual(waiting.map(part => part.toolCallId), ['d1', 'd2']);
    await sameAsListed(chat);
    await chat.addToolApprovalResponse({ id: waiting[0].approval.id, approved: true });
    assert.equal(chat.status, 'ready');
    await chat.addToolApprovalResponse({ id: waiting[1].approval.id, approved: true });
    await until('the rest', () => chat.status === 'ready' && texts(answer(chat)) === 'Done.');
    assert.deepEqual(states(answer(chat)), ['output-available', 'output-available', 'output-available']);
    assert.equal(chat.messages.length, 2);
    await sameAsListed(chat);
  },

  async denial() {
    const chat = await open({ sendAutomaticallyWhen: whenDecided });
    await chat.sendMessage({ text: 'delete' });
    const waiting = tools(answer(chat)).filter(part => part.state === 'approval-requested');
    await chat.addToolApprovalResponse({ id: waiting[0].approval.id, approved: false, reason: 'No.' });
    await chat.addToolApprovalResponse({ id: waiting[1].approval.id, approved: true });
    await until('the rest', () => chat.status === 'ready' && texts(answer(chat)) === 'Done.');
    assert.deepEqual(states(answer(chat)), ['output-denied', 'output-available', 'output-available']);
    await sameAsListed(chat);
    await validateUIMessages({ messages: await listed(chat.id) });
  },

  async 'a tool two agents below'() {
    const decisions = [[true, undefined], [false, 'No.']];
    for (const [approved, reason] of decisions) {
      for (const isLoaded of [false, true]) {
        const file = `${crypto.randomUUID()}.txt`;
        let chat = await open({ sendAutomaticallyWhen: whenDecided });
        await chat.sendMessage({ text: `clean up ${file}` });
        assert.equal(chat.status, 'ready', chat.error);
        await sameAsListed(chat);
        const asked = tools(answer(chat));
        if (isLoaded) {
          chat = await open({ id: chat.id, messages: await listed(chat.id), sendAutomaticallyWhen: whenDecided });
          await chat.resumeStream();
          assert.equal(chat.status, 'ready', chat.error);
        }
        const [part] = tools(answer(chat));
        assert.deepEqual([part.type, part.state, part.input], ['tool-team', 'approval-requested', { task: file }]);
        assert.deepEqual(part.approval, asked[0].approval);
        if (level === 7) assert.equal(part.approval.requestReason, 'It is gone for ever.');
        const { data } = answer(chat).parts.find(part => part.type === 'data-omni-approval');
        assert.deepEqual([data.toolCallId, data.approvalId], [part.toolCallId, part.approval.id]);
        assert.deepEqual([data.subAgent, data.tool, data.input], ['team', 'delete', { file }]);
        assert.equal(data.reason, 'It is gone for ever.');
        await chat.addToolApprovalResponse({ id: part.approval.id, approved, reason });
        await until('the rest', () => chat.status === 'ready' && texts(answer(chat)) === 'Done.');
        const [{ state, output }] = tools(answer(chat));
        assert.deepEqual([state, output], ['output-available', `files: ${approved ? `${file} deleted 1 times` : reason}`]);
        assert.equal(chat.messages.length, 2);
        await sameAsListed(chat);
      }
    }
  },

  async 'an edit of the input of a tool two agents below'() {
    const [file, other] = [`${crypto.randomUUID()}.txt`, `${crypto.randomUUID()}.txt`];
    const chat = await open();
    await chat.sendMessage({ text: `clean up ${file}` });
    const { data } = answer(chat).parts.find(part => part.type === 'data-omni-approval');
    const decisions = [[data.toolUse, { execute_with: { file: other } }]];
    await request('POST', data.commands, { type: 'decide', turn: data.turn, decisions });
    await until('the run', async () => texts((await listed(chat.id)).at(-1)) === 'Done.');
    const [{ output }] = tools((await listed(chat.id)).at(-1));
    assert.ok(output.startsWith('files: A person changed') && output.endsWith(`${other} deleted 1 times`), output);
    await chat.addToolApprovalResponse({ id: data.approvalId, approved: true });
    await chat.sendMessage();
    assert.equal(chat.status, 'error', 'the decision comes too late');
  },

  async 'two tools below one call'() {
    const [one, two] = [`${crypto.randomUUID()}.txt`, `${crypto.randomUUID()}.txt`];
    const chat = await open({ sendAutomaticallyWhen: whenDecided });
    await chat.sendMessage({ text: `clean up ${one} ${two}` });
    await sameAsListed(chat);
    // A part has one approval. So the second one is asked after the first one.
    const asked = new Set();
    for (const approved of [true, false]) {
      const [part] = tools(answer(chat));
      assert.equal(part.state, 'approval-requested');
      asked.add(part.approval.id);
      await chat.addToolApprovalResponse({ id: part.approval.id, approved, reason: 'No.' });
      await until('the next approval', () => chat.status === 'ready' && tools(answer(chat))[0].state !== 'approval-responded');
      if (approved) await sameAsListed(chat);
    }
    assert.equal(asked.size, 2);
    assert.equal(texts(answer(chat)), 'Done.');
    assert.equal(tools(answer(chat))[0].output, `files: No., ${two} deleted 1 times`);
  },

  async 'a call that ends while another one waits'() {
    const [one, two] = [`${crypto.randomUUID()}.txt`, `${crypto.randomUUID()}.txt`];
    const chat = await open({ sendAutomaticallyWhen: whenDecided });
    await chat.sendMessage({ text: `clean up ${one} and later ${two}` });
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(tools(answer(chat))[0].state, 'approval-requested');
    await request('POST', '/gate');
    const agent = async () => (await (await request('GET', `/agent/conversations/${chat.id}`)).json()).agent;
    await until('the second pause', async () => (await agent()).pauses.length === 2);
    await chat.addToolApprovalResponse({ id: tools(answer(chat))[0].approval.id, approved: true });
    await until('the second approval', () => chat.status === 'ready' && states(answer(chat))[1] === 'approval-requested');
    const runs = tool => tool.tool_use_id === 'n0' && tool.is_error === undefined;
    await until('the first result', async () => !(await agent()).tools.some(runs));
    await chat.addToolApprovalResponse({ id: tools(answer(chat))[1].approval.id, approved: true });
    await until('the rest', () => chat.status === 'ready' && texts(answer(chat)) === 'Done.');
    const outputs = [one, two].map(file => `files: ${file} deleted 1 times`);
    assert.deepEqual(tools(answer(chat)).map(part => part.output), outputs);
    await sameAsListed(chat);
  },

  async 'a decision from elsewhere'() {
    const chat = await open();
    await chat.sendMessage({ text: 'delete' });
    const { data } = answer(chat).parts.find(part => part.type === 'data-omni-approval');
    const waiting = tools(answer(chat)).filter(part => part.state === 'approval-requested');
    for (const id of ['d1', 'd2']) {
      await request('POST', data.commands, { type: 'decide', turn: data.turn, decisions: [[id, 'execute']] });
    }
    await until('the run', async () => texts((await listed(chat.id)).at(-1)) === 'Done.');
    for (const { approval } of waiting) await chat.addToolApprovalResponse({ id: approval.id, approved: true });
    await chat.sendMessage();
    assert.equal(chat.status, 'error');
    chat.clearError();
    chat.messages = await listed(chat.id);
    assert.equal(texts(answer(chat)), 'Done.');
  },

  async 'error and regenerate'() {
    const chat = await open();
    await chat.sendMessage({ text: 'fail once' });
    assert.equal(chat.status, 'error');
    assert.match(chat.error.message, /no key/);
    await chat.regenerate();
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(texts(answer(chat)), 'Repaired.');
    await sameAsListed(chat);
  },

  async stop() {
    const chat = await open({ sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls });
    const sent = chat.sendMessage({ text: 'slow' });
    await until('the first text', () => answer(chat) && texts(answer(chat)) === 'One ');
    await request('POST', `/api/chat/${chat.id}/stop`);
    await sent;
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(texts(answer(chat)), 'One ');
    await request('POST', `/api/chat/${chat.id}/stop`);
    await sameAsListed(chat);
  },

  async regenerate() {
    const chat = await open();
    await chat.sendMessage({ text: 'count' });
    const older = [...chat.messages];
    const first = answer(chat);
    await chat.regenerate();
    assert.notEqual(texts(answer(chat)), texts(first));
    assert.notEqual(answer(chat).id, first.id, 'each version has its own id');
    await sameAsListed(chat);
    await chat.regenerate({ messageId: answer(chat).id });
    assert.equal(chat.messages.length, 2);
    await sameAsListed(chat);
    // The older version continues.
    chat.messages = older;
    await chat.sendMessage({ text: 'hello' });
    assert.equal(chat.status, 'ready', chat.error);
    assert.deepEqual(chat.messages.map(texts), ['count', texts(first), 'hello', 'Hello, world.']);
    await sameAsListed(chat);
  },

  async edit() {
    const chat = await open();
    await chat.sendMessage({ text: 'hello' });
    for (const text of ['count', 'think']) {
      await chat.sendMessage({ text, messageId: chat.messages[0].id });
      assert.equal(chat.status, 'ready', chat.error);
      assert.equal(chat.messages.length, 2);
      await sameAsListed(chat);
    }
    await chat.sendMessage({ text: 'hello' });
    assert.equal(chat.messages.length, 4);
    await sameAsListed(chat);
  },

  async 'client tools'() {
    const chat = await open({
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall({ toolCall }) {
        if (toolCall.toolName === 'locate') {
          chat.addToolOutput({ tool: 'locate', toolCallId: toolCall.toolCallId, output: { city: 'Oslo' } });
        }
      },
    });
    await chat.sendMessage({ text: 'locate' });
    await until('the rest', () => chat.status === 'ready' && texts(answer(chat)) === 'Done.');
    assert.deepEqual(tools(answer(chat))[0].output, { city: 'Oslo' });
    assert.equal(chat.messages.length, 2);
    await sameAsListed(chat);
  },

  async 'resume in mid-answer'() {
    const first = await open();
    const sent = first.sendMessage({ text: 'slow' });
    await until('the first text', () => answer(first) && texts(answer(first)) === 'One ');
    const second = await open({ id: first.id, messages: await listed(first.id) });
    assert.equal(second.messages.length, 1, 'the answer in flight is not listed');
    const resumed = second.resumeStream();
    await until('the replay', () => answer(second) && texts(answer(second)) === 'One ');
    await request('POST', '/gate');
    await Promise.all([sent, resumed]);
    assert.equal(texts(answer(second)), 'One two.');
    assert.deepEqual(second.messages.map(texts), first.messages.map(texts));
    await sameAsListed(second);
    await second.resumeStream();
    assert.equal(second.status, 'ready', 'nothing is left to resume');
  },

  async 'reset body'() {
    let cut;
    const cutting = async (...request) => {
      const response = await fetch(...request);
      if (cut !== undefined || response.body === null) {
        return response;
      }
      const reader = response.body.getReader();
      const body = new ReadableStream({
        start(controller) {
          cut = () => controller.error(new TypeError('network error'));
          const pump = async () => {
            for (let item = await reader.read(); !item.done; item = await reader.read()) {
              controller.enqueue(item.value);
            }
          };
          pump().catch(() => {});
        },
      });
      return new Response(body, { status: response.status, headers: response.headers });
    };
    const chat = await open({}, { fetch: cutting });
    const sent = chat.sendMessage({ text: 'slow' });
    await until('the first text', () => answer(chat) && texts(answer(chat)) === 'One ');
    cut();
    await sent;
    assert.equal(chat.status, 'error');
    const resumed = chat['~resumeStreamIfDisconnected']();
    await until('the replay', () => chat.status === 'streaming');
    await request('POST', '/gate');
    await resumed;
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(texts(answer(chat)), 'One two.');
    await sameAsListed(chat);
  },

  async 'cancelled turn and next prompt'() {
    const chat = await open();
    const sent = chat.sendMessage({ text: 'slow' });
    await until('the first text', () => answer(chat) && texts(answer(chat)) === 'One ');
    await request('POST', `/api/chat/${chat.id}/stop?discard=true`);
    await sent;
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(answer(chat).metadata.discarded, true);
    await chat.sendMessage({ text: 'hello' });
    assert.equal(chat.status, 'ready', chat.error);
    assert.equal(texts(answer(chat)), 'Hello, world.');
    assert.equal((await listed(chat.id)).length, 2);
  },

  async 'staged prompt'() {
    const first = await open();
    const sent = first.sendMessage({ text: 'slow' });
    await until('the first text', () => answer(first) && texts(answer(first)) === 'One ');
    const second = await open({ id: first.id, messages: await listed(first.id) });
    const staged = second.sendMessage({ text: 'hello' });
    await until('the second request', async () => (await (await request('GET', `/agent/conversations/${first.id}`)).json()).agent.staged?.length === 1);
    await request('POST', '/gate');
    await Promise.all([sent, staged]);
    assert.equal(texts(answer(first)), 'One two.');
    assert.equal(texts(answer(second)), 'Hello, world.');
  },
};

let failed = 0;
for (const [name, scenario] of Object.entries(scenarios)) {
  try {
    await scenario();
    console.log(`ok ${level} ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${level} ${name}: ${error.stack}`);
  }
}
process.exit(failed === 0 ? 0 : 1);
