/** Short names of forms of the API. */

import type { Schema } from "./client";

export type Approval = Schema["ApprovalView"];
export type AuditHeads = Schema["AuditHeads"];
export type Backtest = Schema["BacktestReport"];
export type CallExplanation = Schema["CallExplanation"];
export type ChainHead = AuditHeads["heads"][number];
export type DoctorCheck = Schema["DiagnosisCheck"];
export type DoctorReport = Schema["Diagnosis"];
export type DoctorState = Schema["DiagnosisState"];
export type RuleDraft = Schema["RuleDraftView"];
export type RuleField = Schema["VocabularyField"] | (Schema["VocabularyArgument"] & { values?: never });
export type RuleProblem = Schema["RuleErrorView"];
export type RuleVersion = Schema["RuleVersionView"];
export type RuleVocabulary = Schema["RuleVocabulary"];
export type ServerTool = Schema["ServerToolView"];
export type TaskEstimate = Schema["TaskEstimate"];
