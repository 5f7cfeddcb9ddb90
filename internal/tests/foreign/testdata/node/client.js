// Locks with redlock over ioredis, as a program to which the tests send commands.
//
// usage: node client.js PORT [PORT PORT …]. Several ports are the servers of a quorum.
// ../../peer_test.go describes the commands and their results.
'use strict'

const readline = require('node:readline')
const { setTimeout: pause } = require('node:timers/promises')
const Redis = require('ioredis')
const Redlock = require('redlock')

const servers = process.argv.slice(2).map((port) => new Redis({ host: '127.0.0.1', port: Number(port) }))
const once = new Redlock(servers, { retryCount: 0 })
const patient = new Redlock(servers, { retryCount: 6000, retryDelay: 10, retryJitter: 5 })
const locks = new Map()

async function acquire(redlock, key, ms) {
  try {
    locks.set(key, await redlock.lock(key, Number(ms)))
  } catch (error) {
    if (error instanceof Redlock.LockError) return 'busy'
    throw error
  }
  return 'held'
}

async function end(yes, work) {
  try {
    await work()
  } catch (error) {
    if (error instanceof Redlock.LockError) return 'lost'
    throw error
  }
  return yes
}

const answers = {
  try: (key, ms) => acquire(once, key, ms),
  wait: (key, ms) => acquire(patient, key, ms),
  extend: (key, ms) =>
    end('extended', async () => locks.set(key, await locks.get(key).extend(Number(ms)))),
  unlock: (key) => end('unlocked', () => locks.get(key).unlock()),
  async visit(key, ms, visits, log, name) {
    for (let n = 0; n < Number(visits); n++) {
      const lock = await patient.lock(key, Number(ms))
      await servers[0].rpush(log, 'in ' + name)
      await pause(1)
      await servers[0].rpush(log, 'out ' + name)
      await lock.unlock()
    }
    return 'visited'
  },
}

async function main() {
  const versions = ['redlock', 'ioredis'].map((name) => require(name + '/package.json').version)
  console.log(`ready redlock ${versions[0]}, ioredis ${versions[1]}`)
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [question, ...words] = line.split(' ')
    console.log('answer ' + (await answers[question](...words)))
  }
  process.exit()
}

main()
