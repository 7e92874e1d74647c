// Generated from the Python client by ./dev generate: change that one.
export interface AuditRecord {
  enabled: boolean;
  path: string;
  lines: number;
  lost: number;
  failure: string;
  blocking: boolean;
}
export interface ChangeRecord {
  act: "set" | "unset" | "add" | "remove";
  key: string;
  value: any;
}
export interface CheckParams {
}
export interface CheckResult {
  ok: boolean;
  steps: Array<CheckStepRecord>;
  layers: Array<string>;
}
export interface CheckStepRecord {
  name: string;
  ok: boolean;
  detail: string;
  remedy: string;
  code: string;
}
export interface ClosePortsParams {
  ports: Array<number>;
  page?: string;
}
export interface ClosePortsResult {
  ports: Array<number>;
  warnings: Array<string>;
}
export interface CommandKillParams {
  command_id: string;
  grace_s?: number | null;
}
export interface CommandKillResult {
  wrap_id: string;
  status: number | null;
}
export interface CommandListParams {
  session_id?: string | null;
}
export interface CommandListResult {
  commands: Array<RunningCommandRecord>;
}
export interface CredentialListParams {
}
export interface CredentialListResult {
  credentials: Array<CredentialRecord>;
}
export interface CredentialRecord {
  source: string;
  host: string;
  place: string;
  state: string;
  variables: Array<string>;
}
export interface CredentialRemoveParams {
  name: string;
}
export interface CredentialRemoveResult {
  removed: boolean;
}
export interface CredentialSetParams {
  name: string;
  value: string;
}
export interface CredentialSetResult {
  used: boolean;
}
export interface DescribeParams {
  session_id?: string | null;
  cwd?: string | null;
  exceptions?: Record<string, string> | null;
  flag_name?: string | null;
  style?: "open" | "strict" | null;
  examples?: boolean | null;
}
export interface DescribeResult {
  generation: number;
  text: string;
  facts: Record<string, any>;
}
export interface EffectiveParams {
  session_id?: string | null;
  cwd?: string | null;
}
export interface EffectiveResult {
  generation: number;
  policy: Record<string, any>;
}
export interface EnvironmentRecord {
  set: Record<string, string>;
  unset: Array<string>;
}
export interface ExcludeCommandParams {
  pattern?: string | null;
  permission_updates?: Array<PermissionUpdate> | null;
  remove?: boolean;
  session_id?: string | null;
  cwd?: string | null;
  confirm?: boolean;
  project?: boolean;
  preview?: boolean | null;
}
export interface ExplainParams {
  kind: "path" | "host" | "command" | "socket";
  target: string;
  write?: boolean;
  session_id?: string | null;
  cwd?: string | null;
  is_sandbox?: boolean | null;
}
export interface ExplainResult {
  kind: string;
  subject: string;
  behavior: "allow" | "ask" | "deny";
  reason: ReasonRecord;
  hint: string;
  sandboxed: boolean | null;
}
export interface GrantRecord {
  grant_id: string;
  session_id: string;
  subject: string;
  scope: "once" | "command" | "session" | "always";
  by: string;
  given_at: number;
  expires_at: number | null;
  command_id: string | null;
}
export interface HelloParams {
  client?: string | null;
  version?: string | null;
  protocol?: number;
  role?: "full" | "agent" | null;
}
export interface HelloResult {
  server: string;
  version: string;
  protocol: number;
  protocol_oldest: number;
  pid: number;
  methods: Array<string>;
  role: "full" | "agent";
}
export interface IgnoredSetting {
  key: string;
  value: any;
  reason: string;
  origin: OriginRecord;
}
export interface LearnedRecord {
  settings: Record<string, any>;
  left_out: Array<LeftOutRecord>;
  notes: Array<string>;
}
export interface LeftOutRecord {
  target: string;
  why: string;
}
export interface LockedKey {
  key: string;
  reason: string;
  origin: OriginRecord | null;
}
export interface MetricsParams {
}
export interface MetricsResult {
  text: string;
}
export interface OriginRecord {
  source: string;
  key: string;
  file: string | null;
  line: number | null;
  column: number | null;
}
export interface OverridesRecord {
  allow_domains?: Array<string>;
  allow_write?: Array<string>;
  allow_read?: Array<string>;
  settings?: string | Record<string, any> | null;
  publish?: Array<string> | null;
  limits?: Record<string, any> | null;
  ignore_unknown_restrictions?: boolean | null;
}
export interface PermissionListParams {
  session_id?: string | null;
}
export interface PermissionListResult {
  grants: Array<GrantRecord>;
  open: Array<PermissionRequest>;
  subscribers: number;
  notified: boolean;
}
export interface PermissionRequest {
  request_id: string;
  session_id: string;
  kind: "sandbox_override" | "network" | "path" | "command" | "trust";
  expires_at: number;
  host: string | null;
  port: number | null;
  path: string | null;
  command: string | null;
  command_id: string | null;
  suggestions: Array<SuggestionRecord>;
  project: string | null;
  text: string;
  write: boolean;
  warnings: Array<string>;
  scopes: Array<"once" | "command" | "session" | "always">;
  wide: boolean;
}
export interface PermissionRequestParams {
  kind: "sandbox_override" | "network" | "path" | "command";
  session_id?: string | null;
  cwd?: string | null;
  host?: string | null;
  port?: number | null;
  path?: string | null;
  write?: boolean;
  command?: string | null;
  command_id?: string | null;
  reason?: string;
  search_path?: string | null;
  is_sandbox?: boolean | null;
}
export interface PermissionRequestResult {
  behavior: "allow" | "deny";
  scope: "once" | "command" | "session" | "always" | null;
  by: string | null;
  text: string;
  request_id: string | null;
  hint: string;
  env: Record<string, string>;
  outcome: string;
}
export interface PermissionResolved {
  request_id: string;
  behavior: "allow" | "deny";
  scope: "once" | "command" | "session" | "always" | null;
  by: string | null;
  session_id: string;
  outcome: string;
  text: string;
}
export interface PermissionResponseParams {
  request_id: string;
  behavior?: "allow" | "deny" | null;
  scope?: "once" | "command" | "session" | "always";
  ttl_s?: number | null;
  confirm?: boolean | null;
  pattern?: string | null;
  decision?: "allow" | "deny" | null;
  tool_use_id?: string | null;
  host?: string | null;
}
export interface PermissionResponseResult {
  behavior: "allow" | "deny";
  scope: "once" | "command" | "session" | "always" | null;
  warnings: Array<string>;
}
export interface PermissionRevokeParams {
  session_id: string;
  grant_id: string;
}
export interface PermissionRevokeResult {
  subject: string;
}
export interface PermissionSubscribeParams {
  original_names?: boolean;
  watch?: boolean | null;
}
export interface PermissionSubscribeResult {
  open: Array<PermissionRequest>;
}
export interface PermissionUpdate {
  type: "addRules";
  rules: Array<any>;
  behavior: "allow";
  destination: "localSettings" | null;
}
export interface PhaseRecord {
  name: string;
  seconds: number;
}
export interface ReasonRecord {
  type: string;
  text: string;
  rule: string | null;
  origin: OriginRecord | null;
}
export interface RestartParams {
  interpreter?: string | null;
}
export interface RestartRecord {
  stall_s: number;
  from_version: string;
  commands: number;
  cut: number;
  lost: Array<string>;
  crashed: boolean;
}
export interface RestartResult {
  pid: number;
  version: string;
}
export interface RunningCommandRecord {
  wrap_id: string;
  command_id: string;
  session_id: string;
  session_name: string | null;
  cwd: string;
  command: string;
  pid: number | null;
  since: number;
  published: Array<string>;
  ports: Array<number> | null;
  processes: number | null;
  cpu_s: number | null;
  memory: number | null;
  connections: number | null;
  connected: Array<string>;
}
export interface SessionCloseParams {
  session_id: string;
}
export interface SessionCloseResult {
  commands_ended: number;
}
export interface SessionJoinParams {
  cwd: string;
  key?: string | null;
}
export interface SessionJoinResult {
  session_id: string;
  opened: boolean;
  agent: number | null;
  warnings: Array<string>;
}
export interface SessionListParams {
}
export interface SessionListResult {
  sessions: Array<SessionRecord>;
}
export interface SessionOpenParams {
  cwd: string;
  name?: string | null;
  settings?: Record<string, any> | string | null;
  permission_mode?: "open" | "prompt" | "none" | "plan" | null;
  detach?: boolean;
}
export interface SessionOpenResult {
  session_id: string;
  policy_generation: number;
  warnings: Array<string>;
}
export interface SessionRecord {
  session_id: string;
  name: string | null;
  cwd: string;
  detached: boolean;
  permission_mode: string;
  opened_at: number;
  commands: number;
  violations: number;
  policy_generation: number;
  implicit: boolean;
  violations_lost: number;
  published: Array<string>;
  key: string;
  agent: number | null;
  sent: number;
  names: number;
}
export interface SessionUpdateParams {
  session_id: string;
  settings?: Record<string, any> | string | null;
  changes?: Array<ChangeRecord> | null;
  confirm?: boolean;
}
export interface SessionUpdateResult {
  policy_generation: number;
  settings: Record<string, any> | string;
  written: boolean;
  changed: Array<string>;
  warnings: Array<string>;
  file: string;
}
export interface SettingValue {
  key: string;
  value: any;
  origins: Array<OriginRecord>;
}
export interface SettingsChangedNotification {
  generation: number;
  changed: Array<SettingValue>;
  problems: Array<SettingsProblem>;
  broken: string;
  session_id: string | null;
  cwd: string | null;
}
export interface SettingsFileRecord {
  source: string;
  path: string;
  state: string;
}
export interface SettingsGetParams {
  key?: string | null;
  session_id?: string | null;
  cwd?: string | null;
}
export interface SettingsGetResult {
  generation: number;
  values: Array<SettingValue>;
  files: Array<SettingsFileRecord>;
  problems: Array<SettingsProblem>;
  ignored: Array<IgnoredSetting>;
}
export interface SettingsLintParams {
  files?: Array<string> | null;
  source?: "managed" | "flag" | "local" | "user" | "project" | null;
  cwd?: string | null;
}
export interface SettingsLintResult {
  ok: boolean;
  files: Array<string>;
  problems: Array<SettingsProblem>;
}
export interface SettingsLockedParams {
  session_id?: string | null;
  cwd?: string | null;
}
export interface SettingsLockedResult {
  locked: Array<LockedKey>;
}
export interface SettingsProblem {
  severity: string;
  message: string;
  file: string | null;
  key: string | null;
  line: number | null;
  column: number | null;
  hint: string;
}
export interface SettingsReloadParams {
}
export interface SettingsReloadResult {
  generation: number;
  changed: boolean;
  problems: Array<SettingsProblem>;
}
export interface SettingsSchemaParams {
}
export interface SettingsSchemaResult {
  schema: Record<string, any>;
}
export interface SettingsSubscribeParams {
  session_id?: string | null;
  cwd?: string | null;
}
export interface SettingsSubscribeResult {
  generation: number;
  values: Array<SettingValue>;
  problems: Array<SettingsProblem>;
  broken: string;
}
export interface SettingsTrustParams {
  action: "list" | "show" | "trust" | "remove";
  path?: string | null;
  digests?: Record<string, string>;
}
export interface SettingsTrustResult {
  permitted: boolean;
  directory: string | null;
  files: Array<TrustFile>;
  widens: Array<WideningRecord>;
  trusted: Array<TrustedRecord>;
  done: boolean;
}
export interface SettingsUpdateParams {
  changes: Array<ChangeRecord>;
  session_id?: string | null;
  cwd?: string | null;
  confirm?: boolean;
  project?: boolean;
  preview?: boolean | null;
}
export interface SettingsUpdateResult {
  generation: number;
  file: string;
  written: boolean;
  changed: Array<string>;
  warnings: Array<string>;
  difference: Array<string>;
}
export interface ShouldSandboxParams {
  command: string;
  session_id?: string | null;
  cwd?: string | null;
  dangerously_disable_sandbox?: boolean;
  path?: string | null;
  is_sandbox?: boolean | null;
}
export interface ShouldSandboxResult {
  sandboxed: boolean;
  behavior: "allow" | "ask" | "deny";
  reason: ReasonRecord;
  hint: string;
  env: Record<string, string>;
  question: "command" | "sandbox_override" | null;
  suggestions: Array<SuggestionRecord>;
}
export interface ShutdownParams {
  grace_s?: number | null;
}
export interface ShutdownResult {
  pid: number;
  commands: number;
}
export interface StatusParams {
}
export interface StatusResult {
  version: string;
  protocol: number;
  pid: number;
  started_at: number;
  socket: string;
  generation: number;
  enabled: boolean;
  settings: Array<SettingsFileRecord>;
  sessions: Array<SessionRecord>;
  layers: Array<string>;
  commands: number;
  warnings: Array<string>;
  network: Array<string>;
  audit: AuditRecord | null;
  startup: Array<PhaseRecord>;
  activated: boolean;
  prepared: number;
  restarts: number;
  restarted: RestartRecord | null;
  unavailable: UnavailableRecord | null;
  enabled_origin: OriginRecord | null;
  program: string;
}
export interface SuggestionRecord {
  behavior: "allow" | "deny";
  scope: "once" | "command" | "session" | "always";
  key: string;
  rule: string;
  kind: string;
  pattern: string | null;
  wide: boolean;
}
export interface TrustFile {
  path: string;
  sha256: string;
  state: string;
  difference: Array<string>;
}
export interface TrustedRecord {
  directory: string;
  files: Array<string>;
  trusted_at: number;
}
export interface UnavailableRecord {
  slug: string;
  message: string;
  hint: string;
}
export interface ViolationAnnotateParams {
  command_id: string;
  stderr: string;
  session_id?: string | null;
}
export interface ViolationAnnotateResult {
  stderr: string;
  violations: number;
}
export interface ViolationClearParams {
  session_id?: string | null;
}
export interface ViolationClearResult {
  cleared: number;
}
export interface ViolationHappened {
  cursor: string;
  violation: ViolationRecord;
}
export interface ViolationListParams {
  session_id?: string | null;
  command_id?: string | null;
  since?: string | null;
}
export interface ViolationListResult {
  violations: Array<ViolationRecord>;
  total: number;
  hidden: number;
  cursor: string;
  complete: boolean;
  lost: number;
}
export interface ViolationRecord {
  id: number;
  time: number;
  session_id: string;
  command_id: string;
  kind: string;
  operation: string;
  target: string;
  outcome: string;
  source: string;
  process: string | null;
  rule: string | null;
  origin: OriginRecord | null;
  hint: string;
  count: number;
  inferred: boolean;
  policy_generation: number;
  last_time: number | null;
  command: string;
}
export interface ViolationStripParams {
  text: string;
}
export interface ViolationStripResult {
  text: string;
}
export interface ViolationSubscribeParams {
  session_id?: string | null;
  since?: string | null;
}
export interface ViolationSuggestParams {
  violation_id: number;
}
export interface ViolationSuggestResult {
  changes: Array<ChangeRecord>;
  why: string;
  notes: Array<string>;
}
export interface ViolationsCleared {
  cursor: string;
  session_id: string;
  cleared: number;
}
export interface WideningRecord {
  key: string;
  value: any;
  origin: OriginRecord;
}
export interface WrapOutcomeParams {
  wrap_id: string;
  learn?: boolean;
}
export interface WrapOutcomeResult {
  started: boolean;
  exited: boolean;
  status: number | null;
  reason: string | null;
  violations: Array<ViolationRecord>;
  hint: string;
  violations_lost: number;
  learned: LearnedRecord | null;
  settings_changed: boolean;
  outdated: boolean;
  signal: number | null;
}
export interface WrapParams {
  command?: string | null;
  argv?: Array<string> | null;
  session_id?: string | null;
  cwd?: string | null;
  shell?: string | null;
  env?: Record<string, string> | null;
  command_id?: string | null;
  command_text?: string | null;
  overrides?: OverridesRecord | null;
  login?: boolean | null;
  prepare?: boolean | null;
  prepared?: string | null;
  given?: string | null;
}
export interface WrapResult {
  wrap_id: string;
  argv: Array<string>;
  command: string;
  env: EnvironmentRecord;
  cwd: string;
  layers: Array<string>;
  warnings: Array<string>;
  expires_in_s: number;
  policy_generation: number;
  published: Array<string>;
  prepared: boolean;
  tmp: string;
  env_tag: string;
}
export interface Methods {
  "hello": { params: HelloParams; result: HelloResult };
  "status": { params: StatusParams; result: StatusResult };
  "check": { params: CheckParams; result: CheckResult };
  "metrics": { params: MetricsParams; result: MetricsResult };
  "restart": { params: RestartParams; result: RestartResult };
  "shutdown": { params: ShutdownParams; result: ShutdownResult };
  "session.open": { params: SessionOpenParams; result: SessionOpenResult };
  "session.join": { params: SessionJoinParams; result: SessionJoinResult };
  "session.update": { params: SessionUpdateParams; result: SessionUpdateResult };
  "session.close": { params: SessionCloseParams; result: SessionCloseResult };
  "session.list": { params: SessionListParams; result: SessionListResult };
  "command.list": { params: CommandListParams; result: CommandListResult };
  "command.kill": { params: CommandKillParams; result: CommandKillResult };
  "should_sandbox": { params: ShouldSandboxParams; result: ShouldSandboxResult };
  "wrap": { params: WrapParams; result: WrapResult };
  "wrap.outcome": { params: WrapOutcomeParams; result: WrapOutcomeResult };
  "permission.subscribe": { params: PermissionSubscribeParams; result: PermissionSubscribeResult };
  "sandbox_permission_response": { params: PermissionResponseParams; result: PermissionResponseResult };
  "permission.request": { params: PermissionRequestParams; result: PermissionRequestResult };
  "permission.list": { params: PermissionListParams; result: PermissionListResult };
  "permission.revoke": { params: PermissionRevokeParams; result: PermissionRevokeResult };
  "violation.list": { params: ViolationListParams; result: ViolationListResult };
  "violation.subscribe": { params: ViolationSubscribeParams; result: ViolationListResult };
  "violation.clear": { params: ViolationClearParams; result: ViolationClearResult };
  "violation.suggest": { params: ViolationSuggestParams; result: ViolationSuggestResult };
  "violation.annotate": { params: ViolationAnnotateParams; result: ViolationAnnotateResult };
  "violation.strip": { params: ViolationStripParams; result: ViolationStripResult };
  "settings.get": { params: SettingsGetParams; result: SettingsGetResult };
  "settings.update": { params: SettingsUpdateParams; result: SettingsUpdateResult };
  "settings.exclude_command": { params: ExcludeCommandParams; result: SettingsUpdateResult };
  "settings.trust": { params: SettingsTrustParams; result: SettingsTrustResult };
  "settings.reload": { params: SettingsReloadParams; result: SettingsReloadResult };
  "settings.locked": { params: SettingsLockedParams; result: SettingsLockedResult };
  "settings.subscribe": { params: SettingsSubscribeParams; result: SettingsSubscribeResult };
  "settings.lint": { params: SettingsLintParams; result: SettingsLintResult };
  "settings.schema": { params: SettingsSchemaParams; result: SettingsSchemaResult };
  "credential.set": { params: CredentialSetParams; result: CredentialSetResult };
  "credential.remove": { params: CredentialRemoveParams; result: CredentialRemoveResult };
  "credential.list": { params: CredentialListParams; result: CredentialListResult };
  "policy.close_ports": { params: ClosePortsParams; result: ClosePortsResult };
  "policy.explain": { params: ExplainParams; result: ExplainResult };
  "policy.effective": { params: EffectiveParams; result: EffectiveResult };
  "policy.describe": { params: DescribeParams; result: DescribeResult };
}
export interface Notifications {
  "settings_changed": SettingsChangedNotification;
  "sandbox_permission_request": PermissionRequest;
  "sandbox_permission_resolved": PermissionResolved;
  "sandbox_violation": ViolationHappened;
  "sandbox_violations_cleared": ViolationsCleared;
}
