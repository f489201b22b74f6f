/** Connections made as those of the user's client: one shape for ioredis and node-redis. */

/** A connection that nothing reconnects and on which nothing is resent. */
class Connection {
  isLast = false; // It ends when nothing is under way on it.
  #pending = 0;
  #isClosed = false; // The library may see later that it is.

  constructor(raw, library) {
    this.raw = raw;
    this.library = library;
    raw.on('error', () => {}); // The requests on it tell of it.
  }

  /** The reply to `words` within `limit` milliseconds; else the connection is closed, as it may come later. */
  async ask(words, limit) {
    this.#pending += 1;
    try {
      return await within(limit, this.library.send(words), `no reply to ${words[0]}`);
    } catch (error) {
      if (!this.isAnswer(error)) this.close();
      throw error;
    } finally {
      this.#pending -= 1;
      if (this.isLast) this.endWhenIdle();
    }
  }

  get isOpen() {
    return !this.#isClosed && this.library.isOpen();
  }

  isAnswer(error) {
    return this.library.isAnswer(error);
  }

  close() {
    this.#isClosed = true;
    this.library.close();
  }

  endWhenIdle() {
    this.isLast = true;
    if (!this.#pending) this.close();
  }
}

/** How to open connections as `client` does, its limit for a reply (ms), and its prefix of keys. */
export function connector(client) {
  const options = client?.options ?? {};
  const prefix = options.keyPrefix ?? '';
  if (client?.isCluster === false && typeof client.call === 'function') {
    return { open: limit => opened(viaIoredis(client), limit), limit: options.commandTimeout, prefix };
  }
  if (typeof client?.sendCommand === 'function' && 'isPubSubActive' in client && client.duplicate) {
    return { open: limit => opened(viaNodeRedis(client), limit), limit: options.commandOptions?.timeout, prefix };
  }
  throw new TypeError(
    'client must be a client of ioredis (new Redis) or node-redis (createClient). A cluster, a pool and a sentinel of node-redis are not supported: give the client of one master',
  );
}

async function opened(connection, limit) {
  try {
    await within(limit, connection.raw.connect(), 'no connection');
    return connection;
  } catch (error) {
    connection.close();
    throw error;
  }
}

function viaIoredis(client) {
  const raw = client.duplicate({
    lazyConnect: true,
    retryStrategy: null,
    sentinelRetryStrategy: null,
    reconnectOnError: null,
    autoResendUnfulfilledCommands: false,
    enableOfflineQueue: false,
    enableAutoPipelining: false,
    stringNumbers: false,
    commandTimeout: undefined,
    socketTimeout: undefined,
    blockingTimeout: undefined,
    keyPrefix: '',
  });
  return new Connection(raw, {
    send: words => raw.call(...words),
    isOpen: () => raw.status === 'ready',
    close: () => raw.disconnect(),
    isAnswer: error => error.name === 'ReplyError',
  });
}

function viaNodeRedis(client) {
  const raw = client.duplicate({
    socket: { ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
    commandOptions: { timeout: undefined },
    commandsQueueMaxLength: undefined,
    clientSideCache: undefined,
    disableOfflineQueue: true,
  });
  return new Connection(raw, {
    send: words => raw.sendCommand(words, { timeout: undefined, typeMapping: undefined }),
    isOpen: () => raw.isReady,
    close: () => raw.isOpen && raw.destroy(),
    isAnswer: error => isNamed(error, 'ErrorReply'),
  });
}

/** Whether a class of `error` has this name: the library itself is not imported. */
function isNamed(error, name) {
  for (let kind = error?.constructor; kind; kind = Object.getPrototypeOf(kind)) if (kind.name === name) return true;
  return false;
}

async function within(limit, promise, what) {
  let timer;
  const over = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} within ${Math.round(limit)} ms`)), limit);
  });
  try {
    return await Promise.race([promise, over]);
  } finally {
    clearTimeout(timer);
  }
}
