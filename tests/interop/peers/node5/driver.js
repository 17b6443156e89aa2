// RocketMQ's own 5.x Node.js client, driven by JSON lines: a command with an id in each line of the
// input, its answer or an event in each line of the output. The process ends with its input.
'use strict';

const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } =
  require('rocketmq-client-nodejs');
const { version } = require('rocketmq-client-nodejs/package.json');

const RESOLUTIONS = { unknown: 0, commit: 1, rollback: 2 };
const REQUEST_TIMEOUT_MS = 10000;

const clients = new Map();
const scripts = new Map();
const received = new Map();

// A client's own output must not end up between our lines.
console.log = console.error;
console.info = console.error;

function write(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function view(message) {
  return {
    message_id: message.messageId,
    topic: message.topic,
    body: message.body.toString('base64'),
    keys: message.keys,
    tag: message.tag || null,
    properties: Object.fromEntries(message.properties),
    message_group: message.messageGroup || null,
    attempt: message.deliveryAttempt ?? null,
  };
}

function outgoing(fields) {
  return {
    topic: fields.topic,
    body: Buffer.from(fields.body, 'base64'),
    keys: [fields.key],
    tag: fields.tag,
    properties: new Map(Object.entries(fields.properties)),
    messageGroup: fields.message_group,
    deliveryTimestamp: fields.deliver_at_ms ? new Date(fields.deliver_at_ms) : undefined,
  };
}

function sent(receipt) {
  return {
    message_id: receipt.messageId,
    transaction_id: receipt.transactionId || null,
    recall_handle: receipt.recallHandle || null,
  };
}

function options(command) {
  return {
    endpoints: command.endpoints,
    namespace: '',
    sslEnabled: command.tls,
    requestTimeout: REQUEST_TIMEOUT_MS,
  };
}

function subscriptions(command) {
  return new Map([[command.topic, new FilterExpression(command.expression)]]);
}

async function started(command, client) {
  await client.startup();
  clients.set(command.client, client);
  return { client_id: client.clientId };
}

// Answers checks as it was told, key by key; the last answer is repeated.
function checker(client) {
  const asked = new Map();
  return {
    async check(message) {
      const key = message.keys[0];
      const number = (asked.get(key) || 0) + 1;
      asked.set(key, number);
      write({ event: 'asked', client, number, view: view(message) });
      const told = scripts.get(`${client} ${key}`) || [];
      return RESOLUTIONS[told.length ? told[Math.min(number, told.length) - 1] : 'unknown'];
    },
  };
}

// Refuses a key as often as it was told, then accepts it.
function listener(command) {
  const left = new Map(Object.entries(command.fail));
  return {
    async consume(message) {
      const key = message.keys[0];
      const refused = (left.get(key) || 0) > 0;
      if (refused) left.set(key, left.get(key) - 1);
      write({ event: 'shown', client: command.client, accepted: !refused, view: view(message) });
      return refused ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
}

const commands = {
  start_producer: command => started(command, new Producer({
    ...options(command), topics: command.topics, checker: checker(command.client),
  })),

  start_simple_consumer: command => started(command, new SimpleConsumer({
    ...options(command),
    consumerGroup: command.group,
    subscriptions: subscriptions(command),
    awaitDuration: command.wait_ms,
  })),

  start_push_consumer: command => started(command, new PushConsumer({
    ...options(command),
    consumerGroup: command.group,
    subscriptions: subscriptions(command),
    messageListener: listener(command),
  })),

  async script(command) {
    scripts.set(`${command.client} ${command.key}`, command.checks);
    return {};
  },

  async send(command) {
    return sent(await clients.get(command.client).send(outgoing(command.message)));
  },

  async send_in_transaction(command) {
    const producer = clients.get(command.client);
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(outgoing(command.message), transaction);
    if (command.then === 'commit') await transaction.commit();
    if (command.then === 'rollback') await transaction.rollback();
    return sent(receipt);
  },

  async recall(command) {
    const producer = clients.get(command.client);
    const receipt = await producer.recallMessage(command.topic, command.recall_handle);
    return { message_id: receipt.messageId };
  },

  async receive(command) {
    const found = await clients.get(command.client).receive(command.max, command.invisible_ms);
    const messages = found.map(message => {
      const handle = String(received.size);
      received.set(handle, message);
      return { handle, view: view(message) };
    });
    return { messages };
  },

  async ack(command) {
    await clients.get(command.client).ack(received.get(command.handle));
    return {};
  },

  async change_invisible(command) {
    const message = received.get(command.handle);
    await clients.get(command.client).changeInvisibleDuration(message, command.invisible_ms);
    return {};
  },

  async stop(command) {
    const client = clients.get(command.client);
    clients.delete(command.client);
    await client.shutdown();
    return {};
  },
};

// The client tells the code of a refused recall only in its text.
function codeInText(problem) {
  const found = /\(code: (\d+)\)$/.exec(problem.message);
  return found && Number(found[1]);
}

async function answer(command) {
  try {
    write({ id: command.id, ok: await commands[command.do](command) });
  } catch (problem) {
    const code = Number.isInteger(problem.code) ? problem.code : codeInText(problem);
    const facts = { type: problem.name, message: String(problem.message), code };
    write({ id: command.id, error: facts });
  }
}

readline.createInterface({ input: process.stdin })
  .on('line', line => answer(JSON.parse(line)))
  .on('close', () => process.exit(0));
write({ event: 'ready', version });
