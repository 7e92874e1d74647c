// The names of @anthropic-ai/sandbox-runtime that a program uses; types of its config are accepted as they are.

import type { EventEmitter } from "node:events";

export interface SandboxRuntimeConfig {
  network: { allowedDomains: string[]; deniedDomains: string[]; [key: string]: unknown };
  filesystem: { denyRead: string[]; allowRead?: string[]; allowWrite: string[]; denyWrite: string[]; [key: string]: unknown };
  ignoreViolations?: Record<string, string[]>;
  [key: string]: unknown;
}
export interface SandboxViolationEvent {
  line: string;
  command?: string;
  encodedCommand?: string;
  timestamp: Date;
}
export type SandboxAskCallback = (params: { host: string; port: number | undefined }) => Promise<boolean>;
export interface WrapWithSandboxOptions {
  commandId?: string;
  commandText?: string;
}
export interface SandboxDependencyCheck {
  warnings: string[];
  errors: string[];
}

export class SandboxViolationStore extends EventEmitter {
  addViolation(violation: SandboxViolationEvent): void;
  getViolations(limit?: number): SandboxViolationEvent[];
  getCount(): number;
  getTotalCount(): number;
  getViolationsForCommand(command: string): SandboxViolationEvent[];
  clear(): void;
  subscribe(listener: (violations: SandboxViolationEvent[]) => void): () => void;
}

export interface ISandboxManager {
  initialize(config: SandboxRuntimeConfig, askCallback?: SandboxAskCallback, enableLogMonitor?: boolean): Promise<void>;
  isSupportedPlatform(): boolean;
  isSandboxingEnabled(): boolean;
  checkDependencies(ripgrep?: { command: string; args?: string[] }): SandboxDependencyCheck;
  checkDependenciesAsync(ripgrep?: { command: string; args?: string[] }): Promise<SandboxDependencyCheck>;
  getFsReadConfig(): { denyOnly: string[]; allowWithinDeny?: string[] };
  getFsWriteConfig(): { allowOnly: string[]; denyWithinAllow: string[] };
  getNetworkRestrictionConfig(): { allowedHosts?: string[]; deniedHosts?: string[] };
  getAllowUnixSockets(): string[] | undefined;
  getAllowLocalBinding(): boolean | undefined;
  getAllowMachLookup(): string[] | undefined;
  getIgnoreViolations(): Record<string, string[]> | undefined;
  getEnableWeakerNestedSandbox(): boolean | undefined;
  getProxyPort(): undefined;
  getProxyAuthToken(): undefined;
  getSocksProxyPort(): undefined;
  getLinuxHttpSocketPath(): undefined;
  getLinuxSocksSocketPath(): undefined;
  getMitmCA(): undefined;
  waitForNetworkInitialization(): Promise<boolean>;
  wrapWithSandbox(
    command: string, binShell?: string, customConfig?: Partial<SandboxRuntimeConfig>, abortSignal?: AbortSignal,
    options?: WrapWithSandboxOptions,
  ): Promise<string>;
  wrapWithSandboxArgv(
    command: string, binShell?: string, customConfig?: Partial<SandboxRuntimeConfig>, abortSignal?: AbortSignal,
    cwd?: string, options?: WrapWithSandboxOptions,
  ): Promise<{ argv: string[]; env: NodeJS.ProcessEnv }>;
  getSandboxViolationStore(): SandboxViolationStore;
  annotateStderrWithSandboxFailures(command: string, stderr: string): string;
  getLinuxGlobPatternWarnings(): string[];
  getConfig(): SandboxRuntimeConfig | undefined;
  updateConfig(config: SandboxRuntimeConfig): void;
  cleanupAfterCommand(): void;
  reset(): Promise<void>;
}
export const SandboxManager: ISandboxManager;

/** Return settings of sandboxd for a config. */
export function settingsOf(config: SandboxRuntimeConfig, options?: { asks?: boolean; cwd?: string }): { sandbox: Record<string, unknown> };
