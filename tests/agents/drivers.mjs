// How each agent is pointed at a server, told a task, and told more in the same session; and how its model has it write a
// file: by a call of its own tool, or with an answer in its own format. `configure` may write into home and work, folders
// of this run alone. Without tools: `mark` stands in the prompts of its conversation and in no others. `rewrites`: its
// prompts do not begin with the ones before.
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

const write = (file, text) => {
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, text);
};
const json = (file, value) => write(file, JSON.stringify(value, null, 2));

const aiderOptions = ['--model', 'openai/local', '--yes-always', '--no-analytics', '--no-check-update', '--no-show-release-notes',
  '--no-show-model-warnings', '--no-pretty', '--no-gitignore'];

export const drivers = {
  codex: {
    api: 'OpenAI Responses',
    route: '/v1/responses',
    configure: ({ url, home }) => write(path.join(home, '.codex', 'config.toml'), `model = "local"
model_provider = "kvasir"
model_context_window = 65536
[model_providers.kvasir]
name = "kvasir"
base_url = "${url}/v1"
wire_api = "responses"
`),
    first: (task) => ['codex', 'exec', '--dangerously-bypass-approvals-and-sandbox', task],
    more: (task) => ['codex', 'exec', 'resume', '--last', '--dangerously-bypass-approvals-and-sandbox', task],
    call: (file, text) => ({ name: 'exec_command', arguments: { cmd: `printf '%s' '${text}' > '${file}'` } }),
  },
  opencode: {
    api: 'OpenAI chat',
    route: '/v1/chat/completions',
    env: () => ({ OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_LSP_DOWNLOAD: '1' }),
    configure: ({ url, home }) => json(path.join(home, '.config', 'opencode', 'opencode.json'), {
      model: 'kvasir/local', autoupdate: false, share: 'disabled',
      provider: {
        kvasir: {
          npm: '@ai-sdk/openai-compatible', name: 'kvasir', options: { baseURL: `${url}/v1` },
          models: { local: { name: 'local', limit: { context: 65536, output: 8192 } } },
        },
      },
    }),
    first: (task) => ['opencode', 'run', '--auto', task],
    more: (task) => ['opencode', 'run', '--auto', '-c', task],
    call: (file, text) => ({ name: 'write', arguments: { filePath: file, content: text } }),
  },
  claude: {
    api: 'Anthropic Messages',
    route: '/v1/messages',
    env: (url) => ({
      ANTHROPIC_BASE_URL: url, ANTHROPIC_AUTH_TOKEN: 'unused', ANTHROPIC_MODEL: 'local', ANTHROPIC_SMALL_FAST_MODEL: 'local',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS: '1', // else each start puts what git status says before the tools
    }),
    first: (task) => ['claude', '-p', '--permission-mode', 'acceptEdits', task],
    more: (task) => ['claude', '-p', '-c', '--permission-mode', 'acceptEdits', task],
    call: (file, text) => ({ name: 'Write', arguments: { file_path: file, content: text } }),
  },
  qwen: {
    api: 'OpenAI chat',
    route: '/v1/chat/completions',
    env: (url) => ({ OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: 'unused', OPENAI_MODEL: 'local' }),
    configure: ({ home }) => json(path.join(home, '.qwen', 'settings.json'), {
      general: { disableAutoUpdate: true }, privacy: { usageStatisticsEnabled: false }, security: { auth: { selectedType: 'openai' } },
    }),
    first: (task) => ['qwen', '--auth-type', 'openai', '--yolo', '-p', task],
    more: (task) => ['qwen', '--auth-type', 'openai', '--yolo', '-c', '-p', task],
    call: (file, text) => ({ name: 'write_file', arguments: { file_path: file, content: text } }),
  },
  pi: {
    api: 'OpenAI chat',
    route: '/v1/chat/completions',
    env: () => ({ PI_OFFLINE: '1', PI_TELEMETRY: '0' }),
    configure: ({ url, home }) => json(path.join(home, '.pi', 'agent', 'models.json'), {
      providers: {
        kvasir: {
          baseUrl: `${url}/v1`, api: 'openai-completions', apiKey: 'unused',
          models: [{ id: 'local', contextWindow: 65536, maxTokens: 8192 }],
        },
      },
    }),
    first: (task) => ['pi', '--provider', 'kvasir', '--model', 'local', '-p', task],
    more: (task) => ['pi', '--provider', 'kvasir', '--model', 'local', '-c', '-p', task],
    call: (file, text) => ({ name: 'write', arguments: { path: file, content: text } }),
  },
  continue: {
    api: 'OpenAI chat',
    route: '/v1/chat/completions',
    rewrites: true, // what git status says stands in its system message, before the tools
    env: () => ({ CONTINUE_TELEMETRY_ENABLED: '0' }),
    // JSON is YAML, too
    configure: ({ url, home }) => json(path.join(home, '.continue', 'config.yaml'), {
      name: 'kvasir', version: '0.0.1', schema: 'v1',
      models: [{
        name: 'local', provider: 'openai', model: 'local', apiBase: `${url}/v1`, apiKey: 'unused', roles: ['chat', 'edit', 'apply'],
        capabilities: ['tool_use'],
      }],
    }),
    first: (task) => ['cn', '--auto', '-p', task],
    more: (task) => ['cn', '--auto', '--resume', '-p', task],
    call: (file, text) => ({ name: 'Write', arguments: { filepath: file, content: text } }),
  },
  aider: {
    api: 'OpenAI chat',
    route: '/v1/chat/completions',
    mark: 'Act as an expert software developer',
    rewrites: true, // what the repository has stands before what was said, its rules behind the question
    env: (url) => ({ OPENAI_API_BASE: `${url}/v1`, OPENAI_API_KEY: 'unused' }),
    first: (task) => ['aider', ...aiderOptions, '--message', task],
    more: (task) => ['aider', ...aiderOptions, '--restore-chat-history', '--message', task],
    answer: (file, text) => `Here it is.\n\n${path.basename(file)}\n\`\`\`\n${text}\n\`\`\`\n`,
  },
};
