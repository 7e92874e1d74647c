// The same measurements through another sandbox runtime, in its own language: node peer.mjs MODULE OPTIONS_JSON
// Prints one JSON object with medians in seconds. Measured in turns with bare bubblewrap, like ours.
import { spawn } from 'node:child_process'
import { performance } from 'node:perf_hooks'
import { pathToFileURL } from 'node:url'

const [module, text] = process.argv.slice(2)
const { rounds, bare, cli, trees, inside } = JSON.parse(text)
const { SandboxManager } = await import(pathToFileURL(module))

const run = (file, args, options = {}) =>
  new Promise((resolve, reject) => {
    const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options })
    let output = ''
    child.stdout.on('data', data => (output += data))
    child.stderr.on('data', data => (output += data))
    child.on('error', reject)
    child.on('close', code => (code === 0 ? resolve(output) : reject(new Error(`${file}: exit ${code}: ${output}`))))
  })
const median = values => values.sort((a, b) => a - b)[Math.floor(values.length / 2)]

async function inTurns(actions, count) {
  const taken = Object.fromEntries(Object.keys(actions).map(name => [name, []]))
  for (const action of Object.values(actions)) await action()
  for (let round = 0; round < count; round++)
    for (const [name, action] of Object.entries(actions)) {
      const begin = performance.now()
      await action()
      taken[name].push((performance.now() - begin) / 1000)
    }
  return Object.fromEntries(Object.entries(taken).map(([name, values]) => [name, median(values)]))
}

await SandboxManager.initialize({
  network: { allowedDomains: ['localhost'], deniedDomains: [] },
  filesystem: { denyRead: [], allowWrite: ['.'], denyWrite: [] },
})
try {
  const ours = async () => {
    await run(await SandboxManager.wrapWithSandbox('true'), [], { shell: true })
    SandboxManager.cleanupAfterCommand?.()
  }
  const result = await inTurns({ warm: ours, bare: () => run(bare[0], bare.slice(1)) }, rounds)
  Object.assign(result, await inTurns({ wrap: () => SandboxManager.wrapWithSandbox('true') }, rounds))
  SandboxManager.cleanupAfterCommand?.()
  for (const [name, folder] of Object.entries(trees)) {
    process.chdir(folder)
    Object.assign(result, await inTurns({ [`wrap_${name}`]: () => SandboxManager.wrapWithSandbox('true') }, rounds))
    SandboxManager.cleanupAfterCommand?.()
  }
  Object.assign(result, await inTurns({
    cli: () => run(process.execPath, [cli, 'true']),
    node: () => run(process.execPath, ['-e', '0']),
  }, Math.ceil(rounds / 4)))
  const figures = []
  for (let round = 0; round < inside.rounds; round++) {
    figures.push(JSON.parse(await run(await SandboxManager.wrapWithSandbox(inside.command), [], { shell: true })))
    SandboxManager.cleanupAfterCommand?.()
  }
  console.log(JSON.stringify({ ...result, figures }))
} finally {
  await SandboxManager.reset()
}
